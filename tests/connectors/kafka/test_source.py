"""A topic as a source, against a real broker."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Message, TopicPartition
from confluent_kafka.cimpl import NewPartitions

import millwheel as mw
from deploy.local.kafka import KafkaBroker
from millwheel.connectors import BadRecord, Source
from millwheel.connectors.kafka import KafkaError, KafkaRecord, source
from millwheel.connectors.kafka.clients import Access
from millwheel.connectors.kafka.records import message_bytes
from millwheel.sdk.errors import UsageError
from millwheel.testing.connectors import SourceContract
from tests import components
from tests.connectors.given import Store, Table, running
from tests.connectors.kafka.given import (
    Bid,
    Reading,
    address,
    administer,
    away,
    new_topic,
    read_all,
    settings_text,
    transaction,
    wait_for,
    wait_until_led,
    written,
)
from tests.patience import patience, until

LAMP, VASE = Bid("lamp", 300), Bid("vase", 900)
NOON_MS = 1_767_268_800_000


def of(topic: str, kind: Any = Bid, **options: Any) -> Source[Any, int]:
    return source(topic, kind, brokers=address(), **options)


@pytest.mark.guarantee("G1", "G7", "G13")
class TestTopic(SourceContract[int, int]):
    @pytest.fixture(autouse=True)
    def _topic(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Virtual time passes at once, and each read that finds nothing would wait in real time.
        monkeypatch.setattr("millwheel.connectors.kafka.partitions.WAIT_SECONDS", 0.005)
        self.partitions = 2
        self.topic = new_topic(self.partitions)

    def make_source(self) -> Source[int, int]:
        return of(self.topic, int)

    def write(self, split: int, numbers: Sequence[int]) -> None:
        if split >= self.partitions:
            self.partitions = split + 1
            administer(lambda admin: admin.create_partitions([NewPartitions(self.topic, self.partitions)]))
            wait_until_led(self.topic, self.partitions)
        written(self.topic, numbers, partition=split)

    def write_bad(self, split: int) -> None:
        written(self.topic, [b"no JSON"], partition=split)

    @contextmanager
    def away(self) -> Iterator[None]:
        with away():
            yield


async def test_a_partition_is_read_from_its_position_on() -> None:
    topic = new_topic()
    written(topic, [Bid("lamp", cents) for cents in range(2_500)])
    reading = await read_all(of(topic), 2_500)
    assert [bid.cents for bid in reading.records] == list(range(2_500))
    assert reading.last is not None
    assert reading.last.position == 2_500
    again = await read_all(of(topic), 500, position=2_000)
    assert [bid.cents for bid in again.records] == list(range(2_000, 2_500))


@pytest.mark.guarantee("G1")
async def test_what_is_not_committed_is_passed() -> None:
    """Aborted records and the markers of transactions have offsets, and the position passes them."""
    topic = new_topic()
    written(topic, [LAMP])
    for value, commit in ((VASE, False), (LAMP, True), (VASE, False)):
        with transaction() as producer:
            producer.produce(topic, msgspec.json.encode(value), partition=0)
            producer.flush(patience(20))
            producer.commit_transaction() if commit else producer.abort_transaction()
    reading = await read_all(of(topic), 2)
    assert reading.records == [LAMP, LAMP]
    assert reading.last is not None
    assert reading.last.position == 7  # behind the last marker
    again = await read_all(of(topic), 0, position=7)
    assert again.records == []


async def test_an_open_transaction_is_waited_for() -> None:
    topic = new_topic()
    reading = Reading(await of(topic).open_reader("0", None))
    with transaction() as producer:
        producer.produce(topic, msgspec.json.encode(LAMP), partition=0)
        producer.flush(patience(20))
        written(topic, [VASE])
        await reading.until(lambda one: one.last is not None and one.last.behind == 0)
        assert reading.records == []
        producer.commit_transaction()
    await reading.until(lambda one: len(one.records) == 2)
    assert reading.records == [LAMP, VASE]
    await reading.reader.close()


async def test_the_event_time_is_that_of_the_record() -> None:
    topic = new_topic()
    written(topic, [LAMP], at=NOON_MS)
    written(topic, [VASE], at=-1)  # a producer that gives none
    reading = await read_all(of(topic), 2)
    assert reading.times == [NOON_MS * 1_000, None]


async def test_a_source_begins_where_it_is_said() -> None:
    topic = new_topic()
    for cents in range(3):
        written(topic, [Bid("lamp", cents)], at=NOON_MS + cents * 1_000)
    after = mw.Timestamp((NOON_MS + 500) * 1_000)
    assert len((await read_all(of(topic, start="earliest"), 3)).records) == 3
    assert [one.cents for one in (await read_all(of(topic, start=after), 2)).records] == [1, 2]
    late = mw.Timestamp(4_102_444_800_000_000)  # in 2100
    for start in ("latest", late):
        reading = Reading(await of(topic, start=start).open_reader("0", None))
        written(topic, [VASE])
        await reading.until(lambda one: one.records)
        assert reading.records == [VASE]
        await reading.reader.close()
        assert len((await read_all(of(topic, start=start), 2, position=2)).records) >= 2  # a position comes first


async def test_a_source_begins_at_offsets() -> None:
    topic = new_topic(2)
    for partition in range(2):
        written(topic, [Bid("lamp", cents) for cents in range(4)], partition=partition)
    begins = of(topic, start={0: 3})
    assert [one.cents for one in (await read_all(begins, 1)).records] == [3]
    assert len((await read_all(begins, 4, split="1")).records) == 4  # a partition that is not named: from its beginning
    assert (await read_all(of(topic, start={0: 4}), 0)).records == []
    with pytest.raises(KafkaError, match="ends at offset 4, and start= says 5"):
        await of(topic, start={0: 5}).open_reader("0", None)
    others = of(topic, start={0: 3, 7: 1, 2: 1})
    with pytest.raises(KafkaError, match=r"has 2 partitions, from 0 on, and start= has an offset for \[2, 7\]"):
        await others.open_reader("0", None)
    assert (await others.splits()).names == ["0", "1"]
    await (await others.open_reader("0", 3)).close()  # a source that has begun goes on


@pytest.mark.guarantee("G1")
async def test_a_start_that_may_be_removed_is_an_error() -> None:
    topic = new_topic()
    for cents in range(4):
        written(topic, [Bid("lamp", cents)], at=NOON_MS + cents * 1_000)
    remove_before(topic, 2)
    noon = datetime.fromtimestamp(NOON_MS / 1_000, UTC)
    assert [one.cents for one in (await read_all(of(topic, start=noon + timedelta(seconds=3)), 1)).records] == [3]
    for start, error in (
        (noon, "before offset 2 was removed .* may be as new as start="),
        ({0: 1}, "offsets 1 to 1 were"),
    ):
        with pytest.raises(KafkaError, match=error):
            await of(topic, start=start).open_reader("0", None)
        skipped = await read_all(of(topic, start=start, skip_removed=True), 2)
        assert [one.cents for one in skipped.records] == [2, 3]
    assert [one.cents for one in (await read_all(of(topic, start="earliest"), 2)).records] == [2, 3]
    remove_before(topic, 4)
    late = mw.Timestamp(4_102_444_800_000_000)  # in 2100
    with pytest.raises(KafkaError, match=r"Nothing is left there, so no other time helps: .*skip_removed=True"):
        await of(topic, start=late).open_reader("0", None)
    reading = Reading(await of(topic, start=late, skip_removed=True).open_reader("0", None))
    written(topic, [VASE])
    await reading.until(lambda one: one.records)
    assert reading.records == [VASE]
    await reading.reader.close()


@pytest.mark.guarantee("G1")
def test_a_beginning_is_chosen_once() -> None:
    """Otherwise each attempt would begin behind the record that cannot be read."""

    def go_on() -> None:
        wait_for(harness, lambda: False)

    def crash() -> None:
        harness.crash()
        go_on()

    topic = new_topic()
    begins = mw.Topology("begins")
    begins.source("bids", Bid, of(topic, start="latest"))
    with running(begins) as harness:
        wait_for(harness, lambda: harness.state("bids-splits", "").names)
        wait_for(harness, lambda: harness.state("bids-reader", "0").position == 0)
        written(topic, [b"no JSON"])
        with pytest.raises(mw.MillwheelError, match="split '0', offset 0"):
            go_on()
        written(topic, [LAMP])
        with pytest.raises(mw.MillwheelError, match="split '0', offset 0"):
            crash()
        assert list(harness.values("bids")) == []


async def test_a_whole_record_has_key_and_headers() -> None:
    topic = new_topic()
    written(topic, [LAMP, None], key="lamp", headers=[("by", b"ann"), ("empty", None)], at=NOON_MS)
    at = mw.Timestamp(NOON_MS * 1_000)
    expected = [
        KafkaRecord(value, b"lamp", [("by", b"ann"), ("empty", None)], 0, offset, at)
        for offset, value in enumerate((LAMP, None))
    ]
    assert (await read_all(of(topic, KafkaRecord[Bid]), 2)).records == expected
    raw = (await read_all(of(topic, KafkaRecord[bytes]), 2)).records
    assert [one.value for one in raw] == [msgspec.json.encode(LAMP), None]
    assert (await read_all(of(topic, KafkaRecord), 2)).records == raw


def packed(record: KafkaRecord[bytes]) -> str:
    return f"{record.offset} {len(record.value or b'')}"


async def test_values_have_the_format_that_is_said() -> None:
    topic = new_topic()
    written(topic, [msgspec.msgpack.encode(LAMP)])
    assert (await read_all(of(topic, format="msgpack"), 1)).records == [LAMP]
    assert (await read_all(of(topic, bytes), 1)).records == [msgspec.msgpack.encode(LAMP)]
    own: Source[str, int] = source(topic, decode=packed, brokers=address())
    assert (await read_all(own, 1)).records == [f"0 {len(msgspec.msgpack.encode(LAMP))}"]


@pytest.mark.guarantee("G13")
def test_keys_and_headers_count_to_the_bound_of_a_read() -> None:
    headers: Any = [("by", b"ann"), ("empty", None)]
    assert message_bytes(Message(topic="bids", key=b"lamp", value=b"12345", headers=headers)) == 4 + 5 + 2 + 3 + 5
    assert message_bytes(Message(topic="bids")) == 0


async def test_what_is_no_bid_is_a_bad_record() -> None:
    topic = new_topic()
    written(topic, [LAMP, b'{"item": "vase", "cents": "many"}', None, VASE])
    reading = await read_all(of(topic), 4)
    assert [reading.records[0], reading.records[3]] == [LAMP, VASE]
    wrong, tombstone = reading.records[1:3]
    assert wrong.split == "0"
    assert wrong.place == "offset 1"
    assert "Expected `int`" in wrong.error
    assert wrong.raw == b'{"item": "vase", "cents": "many"}'
    assert isinstance(tombstone, BadRecord)
    assert "tombstone" in tombstone.error


def test_a_record_that_cannot_be_read_stops_its_split() -> None:
    topic = new_topic()
    written(topic, [LAMP, b"no JSON", VASE])
    stops, goes_on = mw.Topology("stops"), mw.Topology("goes-on")
    stops.source("bids", Bid, of(topic))
    goes_on.source("bids", Bid, of(topic), bad="unreadable")
    with pytest.raises(mw.MillwheelError, match=r"split '0', offset 1: .*malformed"), running(stops) as harness:
        wait_for(harness, lambda: False)
    with running(goes_on) as harness:
        wait_for(harness, lambda: len(harness.values("bids")) == 2)
        assert [bad.raw for bad in harness.values("unreadable")] == [b"no JSON"]


def test_a_record_whose_time_fails_has_its_offset() -> None:
    topic, topology = new_topic(), mw.Topology("shop")
    written(topic, [VASE, LAMP])
    topology.source("bids", Bid, of(topic), timestamp=lambda bid: mw.Timestamp(bid.cents), bad="unreadable")
    with running(topology) as harness:
        wait_for(harness, lambda: len(harness.values("unreadable")) == 2)
        assert [bad.place for bad in harness.values("unreadable")] == ["offset 0", "offset 1"]


@pytest.mark.guarantee("G7")
def test_an_idle_partition_lets_the_watermark_go() -> None:
    topic = new_topic(2)
    idle = mw.Topology("idle")
    idle.source("bids", Bid, of(topic), idle_after=mw.seconds(5)).to("kept", Table(Store()))
    with transaction() as producer:
        producer.produce(topic, msgspec.json.encode(LAMP), partition=0, timestamp=NOON_MS)
        producer.commit_transaction()  # partition 0 ends with a marker, and partition 1 is empty
    with running(idle) as harness:
        wait_for(harness, lambda: harness.watermark("kept") > harness.now - mw.seconds(5), mw.seconds(1))


def remove_before(topic: str, offset: int) -> None:
    """What retention does."""
    administer(lambda admin: admin.delete_records([TopicPartition(topic, 0, offset)]))


@pytest.mark.guarantee("G1")
async def test_removed_records_are_an_error_and_no_jump() -> None:
    topic = new_topic()
    written(topic, [Bid("lamp", cents) for cents in range(10)])
    remove_before(topic, 5)
    with pytest.raises(KafkaError, match="offsets 3 to 4 were removed by the topic's retention"):
        await of(topic).open_reader("0", 3)
    skipped = await read_all(of(topic, skip_removed=True), 5, position=3)
    assert [bid.cents for bid in skipped.records] == [5, 6, 7, 8, 9]
    with pytest.raises(KafkaError, match="ends at offset 10, and was read up to 11"):
        await of(topic).open_reader("0", 11)


@pytest.mark.guarantee("G1")
async def test_records_removed_under_a_reader_are_an_error() -> None:
    topic = new_topic()
    written(topic, [bytes([number]) * 900_000 for number in range(24)])
    reading = Reading(await of(topic, bytes).open_reader("0", None))
    await reading.until(lambda one: one.records)  # the client fetches some MiB ahead, and not all of this
    remove_before(topic, 24)
    with pytest.raises(KafkaError, match="were removed by the topic's retention"):
        await reading.until(lambda one: len(one.records) == 24)
    assert [value[0] for value in reading.records] == list(range(len(reading.records)))
    await reading.reader.close()


async def test_a_topic_that_is_not_there_is_named() -> None:
    missing = of("no-such-topic")
    with pytest.raises(KafkaError, match="no topic 'no-such-topic' at brokers"):
        await missing.splits()
    with pytest.raises(KafkaError, match="no topic"):
        await missing.splits()  # the first search has not made it


async def test_a_password_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, path = components.kafka(), tmp_path / "kafka.properties"
    topic = new_topic()
    written(topic, [LAMP])
    path.write_text("# of a test\n\n" + settings_text(broker, **{"sasl.password": "${KAFKA_PASSWORD}"}))
    secret: Source[Bid, int] = source(topic, Bid, settings=str(path))
    with pytest.raises(KafkaError, match="line 7: the worker has no environment variable KAFKA_PASSWORD"):
        await secret.open_reader("0", None)
    monkeypatch.setenv("KAFKA_PASSWORD", broker.password_settings["sasl.password"])
    assert (await read_all(secret, 1)).records == [LAMP]
    assert secret.identity() == of(topic).identity()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("bootstrap.servers=localhost:1\nisolation.level=read_uncommitted\n", "sets isolation.level"),
        ("bootstrap.servers=localhost:1\nno.such=1\n", 'cannot be used: .*"no.such"'),
        ("bootstrap.servers=localhost:1\nsecret\n", "line 2 is no property: write name=value$"),
        ("client.id=me\n", "has no bootstrap.servers"),
    ],
)
async def test_settings_that_cannot_be_used_are_named(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "kafka.properties"
    path.write_text(text)
    with pytest.raises(KafkaError, match=error):
        await source("bids", Bid, settings=str(path)).splits()


async def test_a_file_of_settings_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(KafkaError, match=r"cannot read the file of settings.*kafka.properties"):
        await source("bids", Bid, settings=str(tmp_path / "kafka.properties")).splits()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "Kafka needs brokers="),
        ({"brokers": "x:1", "start": "middle"}, "'earliest', 'latest', a datetime"),
        ({"brokers": "x:1", "start": {"0": 1}}, "an offset for the number of a partition"),
        ({"brokers": "x:1", "start": {0: -1}}, "an offset for the number of a partition"),
        ({"brokers": "x:1", "format": "avro"}, "json, msgpack, not 'avro'"),
        ({"brokers": "x:1", "kind": list[int] | list[str]}, "Give decode=FUNCTION"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        source("bids", **{"kind": Bid, **arguments})


async def test_a_broker_that_is_away_is_an_error_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.connectors.kafka.asking.ANSWER_SECONDS", 1.0)
    away: Source[Bid, int] = source("bids", Bid, brokers="127.0.0.1:1")
    with pytest.raises(KafkaError, match=r"127\.0\.0\.1:1.*(refused|down)"):
        await away.splits()


@pytest.mark.parametrize("made", [Access.admin, Access.producer])
def test_a_client_ends_when_it_is_dropped(made: Callable[[Access], Any]) -> None:
    """Otherwise its threads stay until the next collection of garbage."""
    gc.disable()
    try:
        client = made(Access("127.0.0.1:1", None))
        dropped = weakref.ref(client)
        del client
        assert dropped() is None
    finally:
        gc.enable()


@pytest.mark.timeout(300)
@pytest.mark.guarantee("G7")
async def test_a_broker_that_hangs_makes_no_partition_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with KafkaBroker(tmp_path / "kafka") as broker:
        topic = new_topic(broker=broker.address)
        written(topic, [LAMP], broker=broker.address)
        reading = Reading(await source(topic, Bid, brokers=broker.address).open_reader("0", None))
        await reading.until_end(1)
        broker.pause()
        with monkeypatch.context() as patched:
            patched.setattr("millwheel.connectors.kafka.asking.ANSWER_SECONDS", 2.0)
            with pytest.raises(KafkaError):
                await reading.until(lambda one: one.last is not None and one.last.behind == 0)
        broker.resume()  # it may have lost its partitions, and gets them back with a new leader epoch
        written(topic, [VASE], broker=broker.address)
        await reading.until_end(2)  # the same reader goes on
        broker.kill()
        broker.start()
        written(topic, [VASE], broker=broker.address)

        async def count() -> int:
            with suppress(KafkaError):  # a broker that has just begun leads nothing
                await reading.until(lambda one: True)
            return len(reading.records)

        await until(count, patience(20), holds=lambda found: found == 3)
        await reading.reader.close()
