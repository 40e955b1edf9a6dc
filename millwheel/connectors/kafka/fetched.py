"""The messages of a partition that the library has fetched, and the records that they become."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from millwheel.connectors.kafka.clients import KafkaError, is_moving, library
from millwheel.connectors.kafka.records import ParsedValue, event_time, message_bytes
from millwheel.connectors.source import BadRecord, UnreadRecord
from millwheel.model.time import Timestamp
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import UsageError

if TYPE_CHECKING:
    import confluent_kafka

__all__ = ["MAX_BYTES", "FetchedMessages", "PartitionName", "Records", "place_of", "removed"]

T = TypeVar("T")

Records = tuple[list[tuple[T | BadRecord, Timestamp | None]], list[int]]
"""Records, and the offset of each."""

MAX_BYTES: Final = 4 << 20
"""The most of one read, as Kafka has it. If ``decode`` makes more of it, ``most_records`` is lower."""
_LONGEST_READ: Final = 15.0
"""After so many seconds, a read begins with no further record: each of them may ask a schema registry."""
_SAMPLE: Final = 16
"""So many records of a read say how many bytes its records have."""
_MAX_RAW: Final = 256 << 10
"""The most bytes of a record that cannot be read. A record of a stream has up to 1 MiB."""


class PartitionName(NamedTuple):
    """Which partition it is."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"partition {self.number} of topic {self.topic!r}"


class FetchedMessages(Generic[T]):
    """What the library has fetched of a partition and no read has returned, in order.

    *Invariant (G1): the position is behind all records that were returned, and before all others that are readable.*
    Offsets in between may have no record: markers of transactions, and what was aborted or compacted. The position
    passes those at the end only when the broker says that nothing readable is before it (the event of the end).

    *Invariant (G1): an event that may be an error is for a read of its own.* What was fetched before it is returned
    first. Otherwise it would be lost: the topic may have removed it meanwhile.
    """

    def __init__(self, place: PartitionName, read_as: Callable[[confluent_kafka.Message], T]) -> None:
        """``read_as``: makes the value of a message."""
        self._place = place
        self._read_as = read_as
        self.waiting: deque[confluent_kafka.Message] = deque()
        """Records, and events between them."""
        self.position = 0
        """Where the next read begins."""
        self.average = 0
        """The bytes of a record that was read at once, by some of the last read."""

    @property
    def may_be_read_at_once(self) -> bool:
        """Whether a value is read in a moment, without functions of the program or a schema registry."""
        return isinstance(self._read_as, ParsedValue) and not self._read_as.alone

    def read_all(self, most: int, most_bytes: int) -> Records[T] | None:
        """Read what waits at once: up to ``most`` records.

        Returns:
            None, and nothing is read, if nothing waits or something needs more than that: a record that cannot be read,
            an event, or ``most_bytes`` and more. :meth:`read_each` reads it.
        """
        messages, read_as = list(islice(self.waiting, most)), self._read_as
        # Behind what was written last comes an event that says so.
        ends = bool(messages) and messages[-1].error() is not None
        if ends:
            messages.pop()
        if not messages or not isinstance(read_as, ParsedValue):
            return None
        found = read_as.read_all(messages, most_bytes)
        if found is None:
            return None
        for _ in messages:
            self.waiting.popleft()
        offsets = [message.offset() or 0 for message in messages]
        self.position = offsets[-1] + 1
        some = messages[:: -(-len(messages) // _SAMPLE)]
        self.average = sum(map(message_bytes, some)) // len(some)
        if ends and _is_end(self.waiting[0]):
            self._pass(self.waiting.popleft())
        return found, offsets

    def read_each(self, most: int) -> Records[T]:
        """Read what waits one by one, up to ``most`` records. It may take long.

        Raises:
            KafkaError: An event says that the partition cannot be read on, or a schema registry is away.
        """
        records: list[tuple[T | BadRecord, Timestamp | None]] = []
        offsets: list[int] = []
        size, end = 0, time.monotonic() + _LONGEST_READ
        while self.waiting and len(records) < most and size < MAX_BYTES and time.monotonic() < end:
            message = self.waiting[0]
            if records and message.error() is not None and not _is_end(message):
                break
            self.waiting.popleft()
            if message.error() is not None:
                self._pass(message)
                continue
            offset = message.offset() or 0
            records.append((self._value(message), event_time(message)))
            offsets.append(offset)
            size += message_bytes(message)
            self.position = offset + 1
        return records, offsets

    def _pass(self, event: confluent_kafka.Message) -> None:
        """Take an event that stands between the records."""
        error: Any = event.error()
        if _is_end(event):
            self.position = max(self.position, event.offset() or 0)
        elif error.code() in (library().KafkaError._AUTO_OFFSET_RESET, library().KafkaError.OFFSET_OUT_OF_RANGE):
            raise removed(self._place, f"what was at its offset {self.position}")
        elif not is_moving(error):  # the library looks for the new leader, and fetches on from there
            raise KafkaError(f"{self._place}, offset {self.position}: {error.str()}")

    def _value(self, message: confluent_kafka.Message) -> T | BadRecord:
        try:
            return self._read_as(message)
        except (KafkaError, UsageError):
            raise  # a schema registry that is away, or a library that is missing: the record has no fault
        except Exception as error:
            raw: Any = message.value() or b""
            at = place_of(message.offset() or 0)
            return UnreadRecord(str(self._place.number), at, error_message(error), raw[:_MAX_RAW])


def _is_end(event: confluent_kafka.Message) -> bool:
    """Whether an event says that the end is reached, which is no error."""
    error: Any = event.error()
    return bool(error.code() == library().KafkaError._PARTITION_EOF)  # the library's name of an event


def removed(place: PartitionName, what: str) -> KafkaError:
    """The error of records that are gone."""
    return KafkaError(
        f"{place}: {what} were removed by the topic's retention before they were read. Let the source go on "
        "at the earliest record by skip_removed=True"
    )


def place_of(offset: int) -> str:
    """Where a record is in its partition, for people."""
    return f"offset {offset}"
