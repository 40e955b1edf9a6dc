"""Topics of the tests' broker: made, filled, and read back as other programs do it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import millwheel as mw
from deploy.local.kafka import KafkaBroker
from millwheel.connectors import Read, Source, SplitReader
from millwheel.testing import TopologyHarness
from tests import components
from tests.patience import patience, until

_numbers = itertools.count()
STEP: Final = mw.milliseconds(20)


class Bid(msgspec.Struct):
    item: str
    cents: int


def address() -> str:
    return components.kafka().address


@contextmanager
def away() -> Iterator[None]:
    """The tests' broker does not answer. Calls of the connectors wait for a second instead of a quarter of a minute."""
    broker = components.kafka()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("asking.ANSWER_SECONDS", "clients.ANSWER_SECONDS", "partitions.ANSWER_SECONDS"):
            patch.setattr(f"millwheel.connectors.kafka.{name}", 1.0)
        for name in ("writers.ANSWER_SECONDS", "writers.INIT_SECONDS"):
            patch.setattr(f"millwheel.connectors.kafka.{name}", 1.0)
        broker.pause()
        try:
            yield
        finally:
            broker.resume()


def administer(do: Callable[[Any], dict[Any, Any]], broker: str = "") -> None:
    """Ask the broker to change something, and wait until it has."""
    admin = AdminClient({"bootstrap.servers": broker or address()})
    for answer in do(admin).values():
        answer.result(patience(20))


def new_topic(partitions: int = 1, *, broker: str = "", **config: str) -> str:
    """A topic of a name that no other test has."""
    name = f"topic-{os.getpid()}-{next(_numbers)}"
    config = {name.replace("_", "."): value for name, value in config.items()}
    administer(lambda admin: admin.create_topics([NewTopic(name, partitions, 1, config=config)]), broker)
    wait_until_led(name, partitions, broker)
    return name


def wait_until_led(topic: str, partitions: int, broker: str = "") -> None:
    """Return when the broker leads all partitions. It learns of them from the controller."""
    admin, end = AdminClient({"bootstrap.servers": broker or address()}), time.monotonic() + patience(20)
    while time.monotonic() < end:
        found = admin.list_topics(timeout=patience(20)).topics.get(topic)
        if found is not None and [one.leader > 0 for one in found.partitions.values()] == [True] * partitions:
            return
        time.sleep(0.02)
    raise AssertionError(f"{topic} is not there")


def written(
    topic: str,
    values: Sequence[Any],
    *,
    partition: int = 0,
    key: str | None = None,
    headers: Any = None,
    at: int = 0,
    broker: str = "",
) -> None:
    """Write values as JSON, bytes as they are, and None as a tombstone. ``at``: milliseconds, by default now."""
    producer = Producer({"bootstrap.servers": broker or address(), "linger.ms": 1})
    for value in values:
        encoded = value if value is None or isinstance(value, bytes) else msgspec.json.encode(value)
        producer.produce(topic, encoded, key=key, partition=partition, headers=headers, timestamp=at)
    assert producer.flush(patience(20)) == 0


@contextmanager
def transaction(transactional_id: str = "") -> Iterator[Producer]:
    """A transaction of another program. A test commits or aborts it."""
    producer = Producer({
        "bootstrap.servers": address(), "transactional.id": transactional_id or f"other-{next(_numbers)}",
        "transaction.timeout.ms": 60_000, "linger.ms": 1,
    })  # fmt: skip
    producer.init_transactions(patience(20))
    producer.begin_transaction()
    yield producer


def _consumer(broker: str, level: str) -> Consumer:
    return Consumer({
        "bootstrap.servers": broker or address(), "group.id": "tests", "isolation.level": level,
        "enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "error",
    })  # fmt: skip


def committed(topic: str, *, broker: str = "") -> list[Message]:
    """All committed records of a topic, partition by partition."""
    return list(each_committed(topic, broker=broker))


def each_committed(topic: str, *, broker: str = "") -> Iterator[Message]:
    """The same, one by one, for a topic that is too large for memory."""
    asker = _consumer(broker, "read_committed")
    try:
        numbers = sorted(asker.list_topics(topic, timeout=patience(20)).topics[topic].partitions)
    finally:
        asker.close()
    for number in numbers:
        yield from _committed_in(TopicPartition(topic, number), broker)


def _committed_in(place: TopicPartition, broker: str) -> Iterator[Message]:
    """The committed records of a partition, by consumers of its own: one that changes its partitions may stand still.

    A commit is decided before the last partition has its marker. So this waits until no transaction is open.
    """
    readable, all_of_it = _consumer(broker, "read_committed"), _consumer(broker, "read_uncommitted")
    try:
        end = time.monotonic() + patience(20)
        while True:
            low, high = readable.get_watermark_offsets(place, timeout=patience(20))
            if high == all_of_it.get_watermark_offsets(place, timeout=patience(20))[1]:
                break
            assert time.monotonic() < end, f"{place} has an open transaction at {high}"
            time.sleep(0.02)
        at = place.offset = low
        readable.assign([place])
        while at < high:
            message = readable.poll(patience(20))
            assert message is not None, f"{place} has nothing at {at} before {high}"
            if message.error() is None:
                yield message
            at = (message.offset() or 0) + (message.error() is None)
    finally:
        readable.close()
        all_of_it.close()


def bids(topic: str, *, broker: str = "") -> list[tuple[str, int]]:
    """All committed bids of a topic, partition by partition."""
    found = [msgspec.json.decode(message.value() or b"", type=Bid) for message in committed(topic, broker=broker)]
    return [(one.item, one.cents) for one in found]


class Reading:
    """Reads a split until something holds, and keeps what was read."""

    def __init__(self, reader: SplitReader[Any, int]) -> None:
        self.reader = reader
        self.records: list[Any] = []
        self.times: list[int | None] = []
        self.last: Read[Any, int] | None = None

    async def until(self, holds: Callable[[Reading], object]) -> None:
        """Read until it holds."""

        async def read() -> Reading:
            self.last = await self.reader.read()
            self.records += [value for value, _ in self.last.records]
            self.times += [at for _, at in self.last.records]
            return self

        found: Callable[[], Awaitable[Reading]] = read
        await until(found, patience(20), holds=holds)

    async def until_end(self, count: int) -> None:
        """Read so many records, and then until nothing waits."""
        await self.until(lambda one: len(one.records) >= count and one.last is not None and one.last.behind == 0)


async def read_all(source: Source[Any, int], count: int, position: int | None = None, split: str = "0") -> Reading:
    """What a split has from a position on, up to its end."""
    reading = Reading(await source.open_reader(split, position))
    try:
        await reading.until_end(count)
    finally:
        await reading.reader.close()
    return reading


def wait_for(harness: TopologyHarness, holds: Callable[[], object], step: mw.Duration = STEP) -> None:
    """Let virtual time pass until it holds. Each read takes real time."""
    for _ in range(int(patience(20) / 0.05)):
        if holds():
            return
        harness.advance_clock(step)
    raise AssertionError("it does not come to hold")


def settings_text(broker: KafkaBroker, **others: str) -> str:
    """A file of settings for the address that asks for a password."""
    given: Mapping[str, str] = {"bootstrap.servers": broker.password_address, **broker.password_settings, **others}
    return "".join(f"{name}={value}\n" for name, value in given.items())
