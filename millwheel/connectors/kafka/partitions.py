"""Reads one partition, on a thread of its own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from millwheel.connectors.kafka.asking import Asker
from millwheel.connectors.kafka.beginnings import PlainStart, offset_at, offset_since
from millwheel.connectors.kafka.clients import ANSWER_SECONDS, Access, KafkaClient, KafkaError, is_moving, library
from millwheel.connectors.kafka.records import ParsedValue, event_time, message_bytes
from millwheel.connectors.source import BadRecord, Read, SplitReader
from millwheel.connectors.threads import CallThread
from millwheel.model.time import Timestamp, format_timestamp
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import UsageError

if TYPE_CHECKING:
    import confluent_kafka

__all__ = ["WAIT_SECONDS", "PartitionName", "PartitionReader"]

T = TypeVar("T")

_MOST_RECORDS: Final = 1_000
_MOST_BYTES: Final = 4 << 20
"""The most of one read, as Kafka has it. If ``decode`` makes more of it, ``most_records`` is lower."""
WAIT_SECONDS: Final = 0.05
"""How long a read that finds nothing waits."""
_FIRST_WAIT_SECONDS: Final = 0.5
"""How long the first read waits for records that are known to be there."""
_LONGEST_READ: Final = 15.0
"""After so many seconds, a read begins with no further record: each of them may ask a schema registry."""
_CONFIRM_AFTER: Final = 0.25
"""After so many seconds without a record, each read asks the broker whether something waits."""
_MOST_RAW: Final = 256 << 10
"""The most bytes of a record that cannot be read. A record of a stream has up to 1 MiB."""


class PartitionName(NamedTuple):
    """Which partition it is."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"partition {self.number} of topic {self.topic!r}"


class PartitionReader(SplitReader[T, int], Generic[T]):
    """Reads one partition.

    *Invariant (G1): the position is behind all records that were returned, and before all others that are readable.*
    Offsets in between may have no record: markers of transactions, and what was aborted or compacted. The position
    passes those at the end only when the broker says that nothing readable is before it (the event of the end).

    *Invariant (G7): a read says that nothing waits only if the broker has said so since the read began.* So a partition
    that cannot be reached is never idle.

    *Invariant (G1): where a partition begins is chosen once.* Its first read returns that position and no record. So it
    is committed before anything is read. Otherwise a record that fails each time would be skipped: each attempt would
    look for the end of the topic, or for a time, once more.
    """

    def __init__(
        self,
        access: Access,
        asker: Asker,
        place: PartitionName,
        read_as: Callable[[confluent_kafka.Message], T],
        *,
        start: PlainStart,
        skip_removed: bool,
    ) -> None:
        self._access = access
        self._asker = asker
        self._place = place
        self._read_as = read_as
        self._start = start
        self._skip_removed = skip_removed
        self._thread = CallThread("millwheel-kafka")
        self._client: KafkaClient | None = None
        self._waiting: deque[confluent_kafka.Message] = deque()
        self._position = 0
        self._begins = False
        """Whether no commit has the position yet."""
        self._high = 0
        """The end of what is readable, as far as it is known."""
        self._last_record = 0.0
        """When the last record came, by the monotonic clock."""
        self._wait = _FIRST_WAIT_SECONDS

    async def begin(self, position: int | None) -> None:
        """Connect, and go to the position. None: where the source says that a partition begins."""
        try:
            await self._thread.call(lambda: self._begin(position))
        except BaseException:
            with suppress(Exception):
                await self.close()
            raise

    def _begin(self, position: int | None) -> None:
        self._client = self._access.consumer()
        low, high = self._bounds()
        self._begins = position is None
        at = self._first(low, high) if position is None else position
        if at < low:
            if not self._skip_removed:
                raise self._removed(f"its offsets {at} to {low - 1}")
            at = low
        if at > high:
            raise KafkaError(self._beyond(at, high))
        self._handle.assign([library().TopicPartition(*self._place, at)])
        self._position, self._high, self._last_record = at, high, time.monotonic()

    def _beyond(self, at: int, high: int) -> str:
        """The error of a position that the partition does not reach."""
        if self._begins:
            return f"{self._place} ends at offset {high}, and start= says {at}: give an offset that it has"
        return (
            f"{self._place} ends at offset {high}, and was read up to {at}: records were lost, or the topic was "
            "made again. Give the stream another name, which begins as start= says"
        )

    def _bounds(self) -> tuple[int, int]:
        """The offsets of the first record and behind the last one that is committed, from the broker."""
        place = library().TopicPartition(*self._place)
        return self._ask(lambda: self._handle.get_watermark_offsets(place, timeout=ANSWER_SECONDS))  # type: ignore[no-any-return]

    def _first(self, low: int, high: int) -> int:
        start = self._start
        if not isinstance(start, int):
            return offset_at(start, self._place.number, low, high)
        found = self._ask(lambda: self._first_since(start))
        # The end is the one before the search: what came since is read. And what is removed before now is noticed.
        low, _ = self._bounds()
        begins = offset_since(low, high, found)
        if begins.uncertain and not self._skip_removed:
            helps = (
                "Nothing is left there, so no other time helps: begin with what comes by skip_removed=True, and take "
                "it back by an update when each partition has a position"
                if begins.empty
                else "Give a later time, or begin with what is there by skip_removed=True"
            )
            raise KafkaError(
                f"{self._place}: what was before offset {low} was removed by the topic's retention, and some of it may "
                f"be as new as start=, {format_timestamp(start)}. {helps}"
            )
        return begins.offset

    def _first_since(self, start: Timestamp) -> int:
        """The offset of the first record at or after a time, as the broker says it."""
        wanted = [library().TopicPartition(*self._place, -(-start // 1_000))]
        (found,) = self._handle.offsets_for_times(wanted, timeout=ANSWER_SECONDS)
        if found.error is not None:
            raise library().KafkaException(found.error)
        return int(found.offset)

    async def read(self) -> Read[T, int]:
        if self._begins:
            self._begins = False
            return Read([], self._position, behind=max(self._high - self._position, 1))
        records, offsets = await self._thread.call(self._read)
        now = time.monotonic()
        if records:
            self._last_record = now
        elif now - self._last_record >= _CONFIRM_AFTER:
            self._high = await self._asker.end(*self._place)
            return Read(records, self._position, behind=max(self._high - self._position, 0))
        behind = max(self._high - self._position, 0 if records else 1)
        return Read(records, self._position, behind=behind, places=lambda index: _place(offsets[index]))

    def _read(self) -> tuple[list[tuple[T | BadRecord, Timestamp | None]], list[int]]:
        """Return the next records, and the offset of each."""
        self._fetch()
        most = min(self.most_records, _MOST_RECORDS)
        found = self._read_all(most) or self._read_each(most)
        place = library().TopicPartition(*self._place)
        self._high = max(self._high, self._handle.get_watermark_offsets(place, cached=True)[1])
        return found

    def _read_all(self, most: int) -> tuple[list[tuple[T | BadRecord, Timestamp | None]], list[int]] | None:
        """Read what waits at once. None: nothing is read, because nothing waits, or something needs more than that."""
        messages = list(islice(self._waiting, most))
        read_as = self._read_as
        if not messages or not isinstance(read_as, ParsedValue):
            return None
        found = read_as.read_all(messages, _MOST_BYTES)
        if found is None:
            return None
        for _ in messages:
            self._waiting.popleft()
        offsets = [message.offset() or 0 for message in messages]
        self._position = offsets[-1] + 1
        return found, offsets

    def _read_each(self, most: int) -> tuple[list[tuple[T | BadRecord, Timestamp | None]], list[int]]:
        records: list[tuple[T | BadRecord, Timestamp | None]] = []
        offsets: list[int] = []
        size, end = 0, time.monotonic() + _LONGEST_READ
        while self._waiting and len(records) < most and size < _MOST_BYTES and time.monotonic() < end:
            message = self._waiting.popleft()
            if message.error() is not None:
                self._pass(message)
                continue
            offset = message.offset() or 0
            records.append((self._value(message), event_time(message)))
            offsets.append(offset)
            size += message_bytes(message)
            self._position = offset + 1
        return records, offsets

    def _fetch(self) -> None:
        """Take what the library has fetched, if all of the former messages were read."""
        if self._waiting:
            return
        first = self._handle.poll(self._wait if self._position < self._high else WAIT_SECONDS)
        self._wait = WAIT_SECONDS
        if first is not None:
            self._waiting += [first, *self._handle.consume(_MOST_RECORDS - 1, 0)]

    def _pass(self, event: confluent_kafka.Message) -> None:
        """Take an event that stands between the records."""
        error: Any = event.error()
        if error.code() == library().KafkaError._PARTITION_EOF:  # the library's name of an event
            self._position = max(self._position, event.offset() or 0)
        elif error.code() in (library().KafkaError._AUTO_OFFSET_RESET, library().KafkaError.OFFSET_OUT_OF_RANGE):
            raise self._removed(f"what was at its offset {self._position}")
        elif not is_moving(error):  # the library looks for the new leader, and fetches on from there
            raise KafkaError(f"{self._place}, offset {self._position}: {error.str()}")

    def _value(self, message: confluent_kafka.Message) -> T | BadRecord:
        try:
            return self._read_as(message)
        except (KafkaError, UsageError):
            raise  # a schema registry that is away, or a library that is missing: the record has no fault
        except Exception as error:
            raw: Any = message.value() or b""
            at = _place(message.offset() or 0)
            return BadRecord(str(self._place.number), at, error_message(error), raw[:_MOST_RAW])

    def _removed(self, what: str) -> KafkaError:
        return KafkaError(
            f"{self._place}: {what} were removed by the topic's retention before they were read. Let the source go on "
            "at the earliest record by skip_removed=True"
        )

    def _ask(self, call: Callable[[], Any]) -> Any:
        assert self._client is not None
        return self._client.ask(str(self._place), call)

    @property
    def _handle(self) -> Any:
        assert self._client is not None
        return self._client.handle

    async def close(self) -> None:
        await self._thread.end(self._close)

    def _close(self) -> None:
        self._waiting.clear()
        if self._client is not None:
            self._client.handle.close()


def _place(offset: int) -> str:
    """Where a record is in its partition, for people."""
    return f"offset {offset}"
