"""Partitions that change their leader: what is asked again, and what is an error at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError as LibraryError
from confluent_kafka import KafkaException

import millwheel as mw
from millwheel.connectors.kafka import KafkaError
from millwheel.connectors.kafka.asking import Asker
from millwheel.connectors.kafka.clients import Access, KafkaClient
from millwheel.connectors.kafka.fetched import PartitionName
from millwheel.connectors.kafka.partitions import PartitionReader
from millwheel.connectors.kafka.progress import newest_progress
from millwheel.connectors.kafka.records import reads_as
from millwheel.connectors.progress import ShardProgress

NOWHERE = "127.0.0.1:1"
FENCED = LibraryError(LibraryError.FENCED_LEADER_EPOCH)


def failing_once(error: LibraryError) -> Callable[[], int]:
    """A call that raises this, and has an answer at the second time."""
    answers: list[Any] = [KafkaException(error), 7]

    def call() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    return call


@pytest.mark.parametrize(
    "name",
    [
        "FENCED_LEADER_EPOCH",
        "KAFKA_STORAGE_ERROR",
        "LEADER_NOT_AVAILABLE",
        "LISTENER_NOT_FOUND",
        "NOT_LEADER_FOR_PARTITION",
        "OFFSET_NOT_AVAILABLE",
        "REPLICA_NOT_AVAILABLE",
        "UNKNOWN_LEADER_EPOCH",
        "UNKNOWN_TOPIC_ID",
        "_NOENT",
        "_UNKNOWN_PARTITION",
    ],
)
def test_a_partition_that_moves_is_asked_again(name: str) -> None:
    client = Access(NOWHERE, None).admin()
    assert client.ask("partition 0", failing_once(LibraryError(getattr(LibraryError, name)))) == 7


@pytest.mark.parametrize(
    "name", ["TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART", "OFFSET_OUT_OF_RANGE", "_TIMED_OUT", "_TRANSPORT"]
)
def test_any_other_error_is_one_at_once(name: str) -> None:
    error = LibraryError(getattr(LibraryError, name))
    with pytest.raises(KafkaError, match="partition 0: brokers"):
        Access(NOWHERE, None).admin().ask("partition 0", failing_once(error))


@dataclass
class Message:
    """A record, or an error that stands between records, as the library has it."""

    data: bytes = b""
    failure: LibraryError | None = None

    def error(self) -> LibraryError | None:
        return self.failure

    def value(self) -> bytes:
        return self.data

    def offset(self) -> int:
        return 0

    def timestamp(self) -> tuple[int, int]:
        return (0, 0)

    def __len__(self) -> int:
        return len(self.data)

    def key(self) -> None:
        pass

    def headers(self) -> None:
        pass


@dataclass
class Handle:
    """A consumer of a partition with one record, whose leader changes: a broker of a test has no other to go to."""

    messages: list[Message]
    times: list[Any] = field(default_factory=list)
    """What it says about times."""
    assigned: bool = False

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        return (0, 1)

    def offsets_for_times(self, *_: Any, **__: Any) -> list[Any]:
        return [self.times.pop(0)]

    def assign(self, _: Any) -> None:
        self.assigned = True

    def poll(self, _: float) -> Message | None:
        """It has events alone, until it has a partition."""
        return self.messages.pop(0) if self.messages and self.assigned else None

    def consume(self, *_: Any) -> list[Message]:
        return [self.messages.pop(0)] if self.messages else []

    def close(self) -> None:
        pass


class Scripted(Access):
    """Access to that consumer."""

    handle: Any = None

    def consumer(self, **more: Any) -> KafkaClient:
        return KafkaClient(lambda errors: type(self).handle, {"bootstrap.servers": NOWHERE})


def scripted(handle: Handle) -> Access:
    access: Access = type("One", (Scripted,), {"handle": handle})(NOWHERE, None)
    return access


def on_thread(message: Any) -> bytes:
    """A value as a function of a program makes it."""
    return message.value() or b""


ON_LOOP = reads_as(bytes, "json", None)


def reader(handle: Handle, start: Any = "earliest", read_as: Any = on_thread) -> PartitionReader[Any]:
    access = scripted(handle)
    place = PartitionName("bids", 0)
    return PartitionReader(access, Asker(access), place, read_as, start=start, skip_removed=True)


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize(("read_as", "reads"), [(on_thread, 1), (ON_LOOP, 2)], ids=["thread", "loop"])
async def test_a_new_leader_within_a_read_loses_nothing(read_as: Any, reads: int) -> None:
    reading = reader(Handle([Message(failure=FENCED), Message(b"lamp")]), read_as=read_as)
    await reading.begin(0)
    for _ in range(reads):
        found = await reading.read()
    assert ([value for value, _ in found.records], found.position) == ([b"lamp"], 1)
    await reading.close()


async def test_a_new_leader_at_the_search_for_a_time_is_asked() -> None:
    answers = [SimpleNamespace(error=FENCED, offset=-1), SimpleNamespace(error=None, offset=0)]
    reading = reader(Handle([], answers), mw.Timestamp(5_000))
    await reading.begin(None)
    assert (await reading.read()).position == 0
    await reading.close()


def test_a_new_leader_of_the_progress_is_read_on() -> None:
    progress = ShardProgress(1, 2, "3")
    handle = Handle([Message(failure=FENCED), Message(msgspec.json.encode(progress))])
    assert newest_progress(scripted(handle), "progress", 0) == progress
