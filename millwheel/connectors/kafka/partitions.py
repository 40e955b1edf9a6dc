"""Reads one partition: on the event loop what is there, and on a thread of its own what takes long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import WeakSet

from millwheel.connectors.kafka.asking import Asker
from millwheel.connectors.kafka.beginnings import PlainStart, offset_at, offset_since
from millwheel.connectors.kafka.clients import ANSWER_SECONDS, Access, KafkaClient, KafkaError, library
from millwheel.connectors.kafka.fetched import MAX_BYTES, FetchedMessages, PartitionName, Records, place_of, removed
from millwheel.connectors.kafka.records import message_bytes
from millwheel.connectors.source import Read, SplitReader
from millwheel.connectors.threads import CallThread
from millwheel.model.time import Timestamp, format_timestamp

if TYPE_CHECKING:
    import confluent_kafka

__all__ = ["WAIT_SECONDS", "PartitionReader"]

T = TypeVar("T")

_MAX_RECORDS: Final = 8_192
"""The most of one read. Each read is a commit, whose price its records share: with 1,000 of them, a backlog of small
records takes nearly twice as long."""
_USUAL_RECORDS: Final = 1_000
"""The most of one read behind one that was not read at once, and where more would be too many bytes for that."""
_TOGETHER: Final = 65_536
"""So many records have the reads of a process's partitions together, if each may have ``_USUAL_RECORDS`` in any case:
those of an interval may all read when its outbox becomes full (G13)."""
_MAX_BYTES_NOW: Final = 1 << 20
"""The most bytes of a read on the event loop, which does nothing else for some milliseconds then."""
WAIT_SECONDS: Final = 0.05
"""How long a read that finds nothing waits."""
_FIRST_WAIT_SECONDS: Final = 0.5
"""How long the first read waits for records that are known to be there."""
_CONFIRM_AFTER: Final = 0.25
"""After so many seconds without a record, each read asks the broker whether something waits."""


class _LoopTurns:
    """Gives each read on the event loop a turn of it.

    *Invariant (G8, G13): a turn of the loop has one read at most, of all partitions.* An interval begins up to 256
    reads together. In one turn they would keep sockets and timers waiting for seconds.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    async def take(self) -> None:
        """Wait for a turn that no other read has. The caller reads before it waits for anything else."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # a lock is of one loop, and a process with tests has one after the other
            self._loop, self._lock = loop, asyncio.Lock()
        lock = self._lock
        await lock.acquire()
        loop.call_soon(lock.release)  # in the next turn


_TURNS: Final = _LoopTurns()
"""Of all readers of the process."""
_READERS: Final = WeakSet[Any]()
"""All readers of the process."""


class PartitionReader(SplitReader[T, int], Generic[T]):
    """Reads one partition.

    *Invariant (G7): a read says that nothing waits only if the broker has said so since the read began.* So a partition
    that cannot be reached is never idle.

    *Invariant (G1): where a partition begins is chosen once.* Its first read returns that position and no record. So it
    is committed before anything is read. Otherwise a record that fails each time would be skipped: each attempt would
    look for the end of the topic, or for a time, once more.

    *Invariant (G1): the loop and the thread never read at once.* The loop reads only in :meth:`read`, before it gives
    the thread a call. One read runs at a time, and a reader whose read was cancelled reads no more.
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
        self._start = start
        self._skip_removed = skip_removed
        self._thread = CallThread("millwheel-kafka")
        self._client: KafkaClient | None = None
        _READERS.add(self)
        self._fetched = FetchedMessages(place, read_as)
        self._fits = _USUAL_RECORDS
        """How many records are read at once on the event loop, as far as the last read says it."""
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
                raise removed(self._place, f"its offsets {at} to {low - 1}")
            at = low
        if at > high:
            raise KafkaError(self._beyond(at, high))
        self._handle.assign([library().TopicPartition(*self._place, at)])
        self._fetched.position, self._high, self._last_record = at, high, time.monotonic()

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
        fetched = self._fetched
        if self._begins:
            self._begins = False
            return Read([], fetched.position, behind=max(self._high - fetched.position, 1))
        records, offsets = await self._read_now() or await self._thread.call(self._read)
        self._see_end()
        now = time.monotonic()
        if records:
            self._last_record = now
        elif now - self._last_record >= _CONFIRM_AFTER:
            self._high = await self._asker.end(*self._place)
            return Read(records, fetched.position, behind=max(self._high - fetched.position, 0))
        behind = max(self._high - fetched.position, 0 if records else 1)
        return Read(records, fetched.position, behind=behind, places=lambda index: place_of(offsets[index]))

    async def _read_now(self) -> Records[T] | None:
        """Read what the library has fetched, on the event loop. None: nothing is read, and the thread has to look.

        The library fetches and unpacks on threads of its own, which need no lock of Python. A thread of Python that
        parses takes that lock from the loop. Both then take turns after fractions of a millisecond, and each record
        costs a fifth more. So the thread has only what may block or take long: waiting for records, functions of the
        program, schema registries, and large values.
        """
        fetched = self._fetched
        if not fetched.may_be_read_at_once:
            return None
        await _TURNS.take()
        if not fetched.waiting:
            fetched.waiting += self._handle.consume(self._most, 0)
        found = fetched.read_all(self._most, _MAX_BYTES_NOW)
        if found is not None:
            fit = _MAX_BYTES_NOW * 7 // 8 // max(fetched.average, 1)
            self._fits = max(min(fit, _TOGETHER // len(_READERS), _MAX_RECORDS), _USUAL_RECORDS)
        elif fetched.waiting:
            self._fits = _USUAL_RECORDS
        return found

    def _read(self) -> Records[T]:
        """Wait for the next records, and return them."""
        fetched = self._fetched
        if not fetched.waiting:
            self._fetch()
        elif sum(map(message_bytes, fetched.waiting)) < _MAX_BYTES_NOW:
            return fetched.read_each(self._most)  # the loop has tried all at once, if that can be
        return fetched.read_all(self._most, MAX_BYTES) or fetched.read_each(self._most)

    def _fetch(self) -> None:
        """Take what the library has fetched, or fetches soon."""
        first = self._handle.poll(self._wait if self._fetched.position < self._high else WAIT_SECONDS)
        self._wait = WAIT_SECONDS
        if first is not None:
            self._fetched.waiting += [first, *self._handle.consume(self._most - 1, 0)]

    def _see_end(self) -> None:
        """Note the end that came with the records. It asks no broker."""
        place = library().TopicPartition(*self._place)
        self._high = max(self._high, self._handle.get_watermark_offsets(place, cached=True)[1])

    @property
    def _most(self) -> int:
        return min(self.most_records, self._fits)

    def _ask(self, call: Callable[[], Any]) -> Any:
        assert self._client is not None
        return self._client.ask(str(self._place), call)

    @property
    def _handle(self) -> Any:
        assert self._client is not None
        return self._client.handle

    async def close(self) -> None:
        _READERS.discard(self)
        await self._thread.end(self._close)

    def _close(self) -> None:
        self._fetched.waiting.clear()
        if self._client is not None:
            self._client.handle.close()
