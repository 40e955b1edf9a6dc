"""What the library has fetched is read on the event loop, and what may take long on the thread of the reader."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, Message

from millwheel.connectors import Read, SplitReader
from millwheel.connectors.kafka import KafkaError as SourceError
from millwheel.connectors.kafka import KafkaRecord, source
from millwheel.connectors.kafka.fetched import FetchedMessages, PartitionName
from millwheel.connectors.kafka.partitions import PartitionReader
from millwheel.connectors.kafka.records import ParsedValue, reads_as
from tests.connectors.kafka.given import address, new_topic, written
from tests.connectors.kafka.test_moving import ON_LOOP, Handle, reader
from tests.connectors.kafka.test_moving import Message as ScriptedMessage
from tests.patience import until

END = KafkaError(-191)  # the end of a partition
REMOVED = KafkaError(KafkaError.OFFSET_OUT_OF_RANGE)
ENOUGH = 1 << 20


class Parsed(msgspec.Struct):
    """A value that knows the thread on which it was parsed."""

    text: str = ""
    thread: int = 0

    def __post_init__(self) -> None:
        self.thread = threading.get_ident()


def message(offset: int, value: bytes | None = b"{}", **more: Any) -> Message:
    return Message(topic="bids", partition=0, offset=offset, value=value, **more)


def waiting(messages: list[Message]) -> FetchedMessages[Parsed]:
    """Messages of which nothing was read yet."""
    fetched: FetchedMessages[Parsed] = FetchedMessages(PartitionName("bids", 0), reads_as(Parsed, "json", None))
    fetched.waiting += messages
    return fetched


def decoded(record: KafkaRecord[bytes]) -> Parsed:
    return msgspec.json.decode(record.value or b"", type=Parsed)


async def opened(topic: str, **how: Any) -> SplitReader[Parsed, int]:
    kind = () if "decode" in how else (Parsed,)
    reader: SplitReader[Parsed, int] = await source(topic, *kind, brokers=address(), **how).open_reader("0", 0)
    return reader


async def all_read(reader: SplitReader[Parsed, int], count: int) -> list[Read[Parsed, int]]:
    """The reads that have records, until there are so many."""
    reads: list[Read[Parsed, int]] = []

    async def read() -> bool:
        found = await reader.read()
        if found.records:
            reads.append(found)
        return sum(len(one.records) for one in reads) >= count

    await until(read)
    return reads


@pytest.mark.guarantee("G1")
async def test_a_read_of_what_is_there_needs_no_thread() -> None:
    topic = new_topic()
    written(topic, [Parsed(str(number)) for number in range(3_500)])
    reader = await opened(topic)
    reads = await all_read(reader, 3_500)
    await reader.close()
    values: list[Any] = [value for one in reads for value, _ in one.records]
    assert [one.text for one in values] == [str(number) for number in range(3_500)]
    assert reads[-1].position == 3_500
    assert threading.get_ident() in {one.thread for one in values}


async def test_a_function_of_the_program_runs_on_the_thread() -> None:
    topic = new_topic()
    written(topic, [Parsed(str(number)) for number in range(3_500)])
    reader = await opened(topic, decode=decoded)
    reads = await all_read(reader, 3_500)
    await reader.close()
    threads = {value.thread for one in reads for value, _ in one.records if isinstance(value, Parsed)}
    assert len(threads - {threading.get_ident()}) == len(threads) == 1


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize(
    ("messages", "position"),
    [
        ([message(3), message(5)], 6),
        ([message(3), message(7, error=END)], 7),  # what was aborted is before the end
    ],
)
def test_what_waits_is_read_at_once(messages: list[Message], position: int) -> None:
    fetched = waiting(messages)
    found = fetched.read_all(10, ENOUGH)
    assert found is not None
    assert found[1] == [one.offset() for one in messages if one.error() is None]
    assert fetched.position == position
    assert not fetched.waiting


@pytest.mark.guarantee("G13")
def test_no_more_is_read_at_once_than_was_asked_for() -> None:
    fetched = waiting([message(3), message(4), message(5, error=END)])
    assert fetched.read_all(1, ENOUGH) is not None
    assert fetched.position == 4
    assert fetched.read_all(10, len(b"{}")) is None
    assert fetched.read_all(10, ENOUGH) is not None
    assert fetched.position == 5


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize(
    "messages",
    [
        [],
        [message(3), message(4, None)],
        [message(3), message(4, b"no JSON")],
        [message(3, error=END)],
        [message(3, error=END), message(4)],
        [message(3), message(4, error=END), message(4, error=END)],
    ],
)
def test_what_needs_more_is_read_one_by_one(messages: list[Message]) -> None:
    fetched = waiting(messages)
    assert fetched.read_all(10, ENOUGH) is None
    assert list(fetched.waiting) == messages
    assert fetched.position == 0
    fetched.read_each(10)
    assert not fetched.waiting


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("messages", [[message(3)], [message(3, b"no JSON")]])
def test_an_error_drops_nothing_fetched_before_it(messages: list[Message]) -> None:
    fetched = waiting([*messages, message(4, error=REMOVED)])
    _, offsets = fetched.read_all(10, ENOUGH) or fetched.read_each(10)
    assert (offsets, fetched.position) == ([3], 4)
    assert fetched.read_all(10, ENOUGH) is None
    with pytest.raises(SourceError, match="offset 4 were removed"):
        fetched.read_each(10)


class Ready(Handle):
    """A partition whose records are all there."""

    def consume(self, *_: Any) -> list[ScriptedMessage]:
        return [ScriptedMessage(b"lamp"), *self.messages]


async def order_of_reads() -> list[str]:
    """The order of reads that begin together, and of what others have the loop do at once after each."""
    order: list[str] = []
    readers = [reader(Ready([]), read_as=ON_LOOP) for _ in range(5)]

    async def read(one: PartitionReader[Any]) -> None:
        assert (await one.read()).records
        order.append("read")
        asyncio.get_running_loop().call_soon(order.append, "other")

    for one in readers:
        await one.begin(0)
    await asyncio.gather(*map(read, readers))
    for one in readers:
        await one.close()
    return order


@pytest.mark.guarantee("G8", "G13")
def test_the_loop_serves_others_between_two_reads() -> None:
    for _ in range(2):  # a program's tests have one loop after the other
        assert asyncio.run(order_of_reads()) == ["read", "other"] * 5


async def test_what_cannot_be_read_is_parsed_twice_at_most() -> None:
    parsed = Counter[bytes]()

    def parse(value: bytes) -> bytes:
        parsed[value] += 1
        if value == b"broken":
            raise ValueError(value)
        return value

    reading = reader(Ready([ScriptedMessage(b"broken")]), read_as=ParsedValue(parse, alone=False))
    await reading.begin(0)
    assert len((await reading.read()).records) == 2
    assert parsed == {b"lamp": 2, b"broken": 2}  # on the loop, and one by one
    await reading.close()


class Backlog(Handle):
    """A partition with records enough for each read."""

    def __init__(self, size: int) -> None:
        super().__init__([])
        self.record = ScriptedMessage(b"x" * size)
        self.asked: list[int] = []

    def consume(self, most: int, *_: Any) -> list[ScriptedMessage]:
        self.asked.append(most)
        return [self.record] * most


@pytest.mark.guarantee("G8", "G13")
@pytest.mark.parametrize(
    ("size", "asked"),
    [(100, [1_000, 8_192, 8_192]), (500, [1_000, 1_835, 1_835]), (1_000, [1_000, 1_000, 1_000])],
)
async def test_a_backlog_is_read_at_once_in_parts_that_fit(size: int, asked: list[int]) -> None:
    """Regression: 8,192 records of 200 bytes are too many for the loop, and half of them were read one by one."""
    backlog, threads = Backlog(size), set[int]()

    def parse(value: bytes) -> int:
        threads.add(threading.get_ident())
        return len(value)

    reading = reader(backlog, read_as=ParsedValue(parse, alone=False))
    await reading.begin(0)
    for most in asked:
        assert len((await reading.read()).records) == most
    await reading.close()
    assert backlog.asked == asked
    assert threads == {threading.get_ident()}, "no read needs the thread"


async def test_a_read_behind_one_that_was_not_possible_is_small() -> None:
    backlog = Backlog(100)
    reading = reader(backlog, read_as=ON_LOOP)
    await reading.begin(0)
    found = [len((await reading.read()).records)]
    backlog.record = ScriptedMessage(b"x" * 200)  # 8,192 of them are too many bytes for the loop
    found += [len((await reading.read()).records) for _ in range(3)]
    await reading.close()
    assert backlog.asked == [1_000, 8_192]
    assert found == [1_000, 1_000, 1_000, 4_587]


@pytest.mark.guarantee("G13")
async def test_many_partitions_have_small_reads() -> None:
    """All of them may read when an outbox becomes full."""
    others = [reader(Ready([]), read_as=ON_LOOP) for _ in range(63)]
    backlog = Backlog(10)
    reading = reader(backlog, read_as=ON_LOOP)
    await reading.begin(0)
    await reading.read()
    await reading.read()
    for one in (*others, reading):
        await one.close()
    assert backlog.asked[1] <= 65_536 // 64
