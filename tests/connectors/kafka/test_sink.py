"""A topic as a sink: each record once for readers of what is committed, against a real broker (6.1)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.cimpl import murmur2

import millwheel as mw
from deploy.local.kafka import KafkaBroker
from millwheel.connectors import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.connectors.kafka import KafkaError, sink
from millwheel.connectors.kafka.asking import Asker
from millwheel.connectors.kafka.caution import Caution
from millwheel.connectors.kafka.clients import Access
from millwheel.connectors.kafka.progress import NO_PROGRESS, comes_next, progress_topic
from millwheel.connectors.progress import ShardProgress
from millwheel.testing.connectors import SinkContract
from tests.connectors.given import at, running
from tests.connectors.kafka.given import Bid, address, administer, away, bids, committed, new_topic, transaction
from tests.patience import patience

PLACE = SinkShard("shop/totals", 0, 1, run=5)


def to(topic: str, **options: Any) -> Sink[Bid]:
    return sink(topic, **{"key": "item", "brokers": address(), **options})


def place(topic: str, shard: int = 0, shards: int = 1, run: int = 5) -> SinkShard:
    """A shard of a sink of its own."""
    return SinkShard(f"shop/{topic}", shard, shards, run)


def batch(number: int, *cents: int, after: str | None = None, id: str = "") -> SinkBatch[Bid]:
    """A batch whose id is its number, and that comes after the one with the number before."""
    former = str(number - 1) if number > 1 else ""
    records = [(Bid("lamp", one), at(one)) for one in cents]
    return SinkBatch(number, records, id or str(number), former if after is None else after)


@asynccontextmanager
async def writer(given: Sink[Bid], where: SinkShard) -> AsyncIterator[SinkWriter[Bid]]:
    opened = await given.open_writer(where)
    try:
        yield opened
    finally:
        await opened.close()


@pytest.mark.guarantee("G1", "G3", "G15")
class TestTopic(SinkContract[Bid]):
    record_type = Bid

    @pytest.fixture(autouse=True)
    def _topic(self) -> None:
        self.topology = self.topic = new_topic()

    def make_sink(self) -> Sink[Bid]:
        return to(self.topic)

    def stored(self) -> Sequence[int]:
        return [cents for _, cents in bids(self.topic)]

    def value(self, number: int) -> Bid:
        return Bid("lamp", number)

    def number_of(self, value: Bid) -> int:
        return value.cents

    @contextmanager
    def away(self) -> Iterator[None]:
        with away():
            yield


@pytest.mark.guarantee("G3")
async def test_a_former_writer_that_wakes_up_writes_nothing() -> None:
    topic = new_topic()
    async with writer(to(topic), place(topic)) as former, writer(to(topic), place(topic)) as present:
        await present.write(batch(1, 10))
        with pytest.raises(KafkaError, match="another process writes this shard now"):
            await former.write(batch(1, 10))
        await present.write(batch(2, 20))
    assert bids(topic) == [("lamp", 10), ("lamp", 20)]


@pytest.mark.guarantee("G3")
async def test_a_transaction_of_a_former_writer_is_aborted() -> None:
    """The worst moment: all records were sent, and their commit was not."""
    topic = new_topic()
    where = place(topic)
    async with writer(to(topic), where) as first:
        await first.write(batch(1, 10))
    with transaction(f"millwheel/{where.sink}/0") as former:
        former.produce(topic, msgspec.json.encode(Bid("lamp", 20)), key="lamp")
        former.produce(
            f"millwheel-progress.shop.{topic}", msgspec.json.encode(ShardProgress(5, 2, "2")), key=b"0", partition=0
        )
        assert former.flush(patience(20)) == 0
        async with writer(to(topic), where) as present:
            await present.write(batch(2, 20))
            with pytest.raises(KafkaException):
                former.commit_transaction(patience(20))
            await present.write(batch(3, 30))
    assert bids(topic) == [("lamp", 10), ("lamp", 20), ("lamp", 30)]


@pytest.mark.guarantee("G1")
async def test_a_commit_whose_answer_was_lost_is_found() -> None:
    """Also behind many attempts that were aborted, and left nothing but markers."""
    topic = new_topic()
    where = place(topic)
    async with writer(to(topic), where) as first:
        await first.write(batch(1, 10))
    with transaction(f"millwheel/{where.sink}/0") as former:
        for attempt in range(80):
            former.produce(f"millwheel-progress.shop.{topic}", b"lost", key=b"0", partition=0)
            former.flush(patience(20))
            former.abort_transaction()
            if attempt < 79:
                former.begin_transaction()
    async with writer(to(topic), where) as second:
        await second.write(batch(1, 10))
        await second.write(batch(2, 20))
    assert bids(topic) == [("lamp", 10), ("lamp", 20)]


def test_records_of_a_key_are_in_one_partition_in_order() -> None:
    topic = new_topic(4)
    topology = mw.Topology(topic)
    topology.source("bids", Bid).key_by("item").to("table", to(topic), shards=2, batch_records=7)
    items = ["lamp", "vase", "tea", "urn", "cup"]
    with running(topology) as harness:
        for number in range(100):
            if number in (30, 60):
                harness.crash()
            harness.send("bids", Bid(items[number % 5], number), at(number))
        harness.advance_clock(mw.seconds(1))
    found = bids(topic)
    for number, item in enumerate(items):
        assert [cents for one, cents in found if one == item] == list(range(number, 100, 5))
    for message in committed(topic):
        assert message.partition() == murmur2(message.key() or b"", 4)  # where a Java program looks for it


async def test_a_record_has_what_the_sink_says() -> None:
    topic = new_topic(3)
    options = {
        "key": lambda bid: bid.cents,
        "value": lambda bid: None if bid.cents == 2 else bid.item.encode(),
        "headers": lambda bid: {"cents": str(bid.cents), "by": b"ann", "none": None},
        "partition": lambda bid: bid.cents,
    }
    async with writer(to(topic, **options), place(topic)) as one:
        await one.write(batch(1, 1, 2))
    async with writer(to(topic, key=None, event_times=False), place(topic)) as one:
        await one.write(batch(2, 3))
    first, second, third = sorted(committed(topic), key=lambda message: message.key() or b"x")
    assert [message.key() for message in (first, second, third)] == [b"1", b"2", None]
    assert [message.value() for message in (first, second, third)] == [
        b"lamp",
        None,
        msgspec.json.encode(Bid("lamp", 3)),
    ]
    assert first.partition() == 1
    assert first.headers() == [("cents", b"1"), ("by", b"ann"), ("none", None)]
    assert first.timestamp()[1] == at(1) // 1_000
    assert third.timestamp()[1] > at(1_000) // 1_000


async def test_shards_write_side_by_side_and_may_become_more() -> None:
    topic = new_topic()
    async with writer(to(topic), place(topic)) as one:
        await one.write(batch(1, 10))
    opened = await asyncio.gather(*(to(topic).open_writer(place(topic, shard, 5)) for shard in range(5)))
    await asyncio.gather(*(one.write(batch(2 if shard == 0 else 1, 20 + shard)) for shard, one in enumerate(opened)))
    for one in opened:
        await one.close()
    assert sorted(bids(topic)) == [("lamp", 10), *(("lamp", 20 + shard) for shard in range(5))]


async def test_a_sink_makes_no_topic_by_mistake() -> None:
    missing = f"missing-{new_topic()}"
    for _ in range(2):
        with pytest.raises(KafkaError, match="there is no topic 'missing-"):
            await to(missing).open_writer(place(missing))


async def test_a_record_that_is_too_large_is_named() -> None:
    topic = new_topic(max_message_bytes="2000")
    async with writer(to(topic), place(topic)) as one:
        with pytest.raises(KafkaError, match=r"batch 1 is not written: a record of [0-9]+ bytes for topic .*too large"):
            await one.write(SinkBatch(1, [(Bid("x" * 3_000, 1), at(1))], "1", ""))
    async with writer(to(topic), place(topic)) as one:
        await one.write(batch(1, 10))
    assert bids(topic) == [("lamp", 10)]


async def test_a_value_that_cannot_be_encoded_opens_no_transaction() -> None:
    topic = new_topic()

    def refuse(bid: Bid) -> bytes:
        raise ValueError("no such bid")

    async with writer(to(topic, value=refuse), place(topic)) as one:
        with pytest.raises(ValueError, match="no such bid"):
            await one.write(batch(1, 10))
    async with writer(to(topic), place(topic)) as one:
        await one.write(batch(1, 10))


def test_a_batch_follows_the_one_that_is_there() -> None:
    at_two = ShardProgress(5, 2, "2")
    assert comes_next(NO_PROGRESS, batch(1), PLACE)
    assert comes_next(at_two, batch(3), PLACE)
    assert not comes_next(at_two, batch(2), PLACE)
    assert comes_next(ShardProgress(4, 9, "9"), batch(1), PLACE)  # a new run
    assert comes_next(NO_PROGRESS, batch(7, after=""), PLACE)  # the first one of a fork
    for progress, next_one, error in (
        (at_two, batch(4), "batch 2 is the newest one in Kafka.*and batch 4 comes next.*set back"),
        (at_two, batch(3, after="other"), '"batch":2,"id":"other"'),
        (NO_PROGRESS, batch(3), "batch 0 is the newest one.*the topic was removed"),
        (
            ShardProgress(6, 1, "1"),
            batch(3),
            'a later topology .*writes shop/totals, shard 0: this one is over. If that one was deleted.*"id":"2"',
        ),
        (ShardProgress(6, 1, "1"), batch(1), r'this one is over.*{"run":4,"batch":0,"id":""}'),
        (at_two, batch(1), r'batch 1 comes next, after another one.*{"run":4,"batch":0,"id":""}'),
    ):
        with pytest.raises(KafkaError, match=error) as no:
            comes_next(progress, next_one, PLACE)
        proposed = re.search(r"{.*}", str(no.value))
        assert proposed is not None
        assert comes_next(msgspec.json.decode(proposed[0], type=ShardProgress), next_one, PLACE)


async def test_progress_that_is_none_is_named() -> None:
    topic = new_topic()
    async with writer(to(topic), place(topic)) as one:
        await one.write(batch(1, 10))
    with transaction() as other:
        other.produce(f"millwheel-progress.shop.{topic}", b"what", key=b"0", partition=0)
        other.commit_transaction()
    with pytest.raises(KafkaError, match="the newest record is no progress"):
        await to(topic).open_writer(place(topic))


@pytest.mark.guarantee("G1")
async def test_a_transaction_without_an_end_is_an_error() -> None:
    """What it wrote is neither there nor gone. A broker that loses the markers of a transaction leaves one."""
    topic = new_topic()
    async with writer(to(topic), place(topic)) as one:
        await one.write(batch(1, 10))
    with transaction() as other:
        other.produce(f"millwheel-progress.shop.{topic}", b"open", key=b"0", partition=0)
        other.flush(patience(20))
        with pytest.raises(KafkaError, match="has an open transaction at offset 2"):
            await to(topic).open_writer(place(topic))
        other.abort_transaction()
    async with writer(to(topic), place(topic)) as one:
        await one.write(batch(2, 20))


async def test_progress_of_a_removed_topic_is_missed() -> None:
    topic = new_topic()
    async with writer(to(topic), place(topic)) as one:
        await one.write(batch(1, 10))
    administer(lambda admin: admin.delete_topics([f"millwheel-progress.shop.{topic}"]))
    async with writer(to(topic), place(topic)) as one:
        with pytest.raises(KafkaError, match="batch 0 is the newest one"):
            await one.write(batch(2, 20))


@pytest.mark.timeout(300)
@pytest.mark.guarantee("G1")
async def test_topics_that_may_lose_records_are_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weak, strong = await asyncio.to_thread(lambda: (new_topic(), new_topic(min_insync_replicas="2")))
    for topic in (weak, strong):
        async with writer(to(topic), place(topic)):
            pass
    assert not caplog.records  # one replica, as the operator wanted it
    partitions = Asker.partitions

    async def three_replicas(asker: Asker, topic: str) -> dict[int, int]:
        return dict.fromkeys(await partitions(asker, topic), 3)

    monkeypatch.setattr(Asker, "partitions", three_replicas)
    for topic in (weak, strong):
        given = to(topic)
        for _ in range(2):
            async with writer(given, place(topic)):
                pass
    said = [one.getMessage() for one in caplog.records]
    named = [weak, progress_topic(f"shop/{weak}"), progress_topic(f"shop/{strong}")]
    assert len(said) == len(named)
    for text, topic in zip(said, named, strict=True):
        assert text.startswith(f"topic '{topic}' has 3 replicas and min.insync.replicas=1")


async def test_settings_that_are_not_shown_are_no_error(caplog: pytest.LogCaptureFixture) -> None:
    await Caution().look(Asker(Access(address(), None)), "no-such-topic", 3)
    assert not caplog.records


def test_a_broker_that_dies_loses_no_batch(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.connectors.kafka.writers.INIT_SECONDS", 2.0)
    monkeypatch.setattr("millwheel.connectors.kafka.writers.ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("millwheel.connectors.kafka.asking.ANSWER_SECONDS", 1.0)
    with KafkaBroker(tmp_path / "kafka") as broker:
        topic = new_topic(broker=broker.address)
        topology = mw.Topology("dying")
        topology.source("bids", Bid).to("table", to(topic, brokers=broker.address), batch_records=5)
        with running(topology) as harness:
            for number in range(20):
                if number == 7:
                    broker.kill()
                with suppress(KafkaError):
                    harness.send("bids", Bid("lamp", number), at(number))
                if number == 13:
                    assert harness.failures
                    broker.start()
            for _ in range(int(patience(10))):
                if len(bids(topic, broker=broker.address)) == 20:
                    break
                harness.advance_clock(mw.seconds(5))
            assert [cents for _, cents in bids(topic, broker=broker.address)] == list(range(20))
