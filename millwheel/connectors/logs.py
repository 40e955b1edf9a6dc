"""The log of a stream as a source: what a topology has kept is read again, from any place in it (section 4.3)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, overload

import msgspec

from millwheel.connectors.source import BadRecord, Read, Source, SplitReader, Splits, UnreadRecord
from millwheel.connectors.starts import Start, checked_start
from millwheel.errors import MillwheelError
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp, format_timestamp
from millwheel.sdk.codecs import codec_for
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from millwheel.client.subscription import Batch, Subscription

__all__ = ["LogError", "LogPosition", "read_log"]

T = TypeVar("T")

_WAIT: Final = 0.05
"""Seconds that a read waits for the log. It goes on by itself, and the next read takes what has come."""
_SEEK: Final = 2.0
"""Seconds that a read goes on if all records that it finds are older than the beginning."""
_PATIENCE: Final = 30.0
"""Seconds to look for a log that cannot be reached. A call of a connector has a minute."""
_MAX_RAW: Final = 256 << 10
"""The most bytes of a record that cannot be read. A record of a stream has up to 1 MiB."""

log = logging.getLogger("millwheel.logs")


class LogError(MillwheelError):
    """A log does not have what a source reads. The text says what helps."""


class LogPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a log was read.

    Attributes:
        log: Which log it is. Another log of the stream has other offsets.
        offset: The offset of the next record.
        since: Records are passed until one has this time or a later one. None: the source has begun.
        passed: Whether one was passed. So nothing that was removed before belongs to the beginning.
        made: When the log was made, in microseconds. A restored log has the time of its former one. Of two clusters,
            logs may have one name, and not one time. None: not known.
    """

    log: str
    offset: int
    since: int | None = None
    passed: bool = False
    made: int | None = None


@overload
def read_log(
    stream: str,
    record_type: type[T],
    *,
    address: str = ...,
    start: Start | Mapping[str, int] = ...,
    skip_removed: bool = ...,
) -> Source[T, LogPosition]: ...
@overload
def read_log(
    stream: str,
    record_type: TypeForm[T],
    *,
    address: str = ...,
    start: Start | Mapping[str, int] = ...,
    skip_removed: bool = ...,
) -> Source[T, LogPosition]: ...
def read_log(
    stream: str,
    record_type: Any,
    *,
    address: str = "127.0.0.1:7433",
    start: Start | Mapping[str, int] = "earliest",
    skip_removed: bool = False,
) -> Source[Any, LogPosition]:
    """A source that reads what the log of a stream keeps, and then what comes: each record once, by its offset.

    The stream belongs to another topology, or to one of another cluster. Its records keep their times, and its low
    watermark is that of this source. So windows are complete when they were, and late records are late again. The
    stream's retention says how far back it can be read. If its topology is restored from a snapshot, the source goes on
    in the restored log, unless it has read records behind the snapshot.

    For example, what a shop has sold since a Monday::

        SALES = connectors.read_log("shop/sales", Sale, start=datetime(2026, 1, 5, tzinfo=UTC))
        sales = topology.source("sales", Sale, SALES)

    Args:
        stream: The full name of the stream, such as ``shop/sales``.
        record_type: The type of its records, which can read what the stream has.
        address: A master's address as the workers reach it, as host or host:port; several with commas between them.
        start: Where it begins, if nothing was read yet: at the ``earliest`` record that is kept, with what comes from
            now on (``latest``), at the first record with this timestamp or a later one (a datetime with a time zone, or
            a Timestamp), or at an offset, as in ``{"shop/sales": 4711}``.
        skip_removed: Go on with the oldest record that is kept if some were removed unread. By default the source stops
            there, with an error.

    Raises:
        UsageError: An argument cannot be used.
        UnsupportedTypeError: The type cannot be decoded.
    """
    owner, slash, name = stream.partition("/")
    if not (owner and slash and name):
        raise UsageError(f"a log is read by the full name of its stream, as in 'shop/sales', not {stream!r:.80}")
    begins = checked_start(start, "a mapping of the stream to an offset")
    if isinstance(begins, dict):
        offset = begins.get(stream)
        if begins.keys() != {stream} or not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise UsageError(f"start= has an offset for the stream, as in {{{stream!r}: 4711}}, not {start!r:.80}")
    decode = codec_for(record_type, f"stream {stream!r}").decode
    return _LogSource(stream, decode, address, begins, skip_removed)


@dataclass(frozen=True)
class _LogSource(Source[T, LogPosition], Generic[T]):
    _times_are_checked: ClassVar[bool] = True
    """A cluster has taken these records. A result has the time at which its window ends, in a year or in ten."""
    stream: str
    decode: Callable[[bytes], T]
    address: str
    start: str | Timestamp | dict[str, int]
    skip_removed: bool

    def identity(self) -> str:
        return f"log of stream {self.stream}"

    async def splits(self) -> Splits:
        return Splits([self.stream], final=True)

    async def open_reader(self, split: str, position: LogPosition | None) -> SplitReader[T, LogPosition]:
        from millwheel.rpc.failures import RequestError

        with _refusals(self.stream, self.address):
            if position is None and not isinstance(self.start, str) and not self.skip_removed:
                await self._find_log()
            try:
                return await self._begun(position)
            except RequestError as error:
                if position is None or error.reason != "STREAM_LOG_REPLACED":
                    raise
            return await self._begun(await self._restored(position))

    async def _begun(self, position: LogPosition | None) -> SplitReader[T, LogPosition]:
        reader = _LogReader(self, await self._follow(position), position)
        await reader.begin()
        return reader

    async def _restored(self, position: LogPosition) -> LogPosition:
        """The same position in the log that a restore has made of the one that was read.

        *Invariant (G1): below where the former log ended in the snapshot, both have the same records.* Behind it each
        has its own, so a source that was there would pass some unread. Its error stays, also when the log has grown.

        Raises:
            LogError: It is another log, or this source was behind the snapshot.
        """
        from millwheel.client.control import ControlClient

        async with ControlClient(self.address, patience=_PATIENCE) as client:
            place = await client.ensure_stream_log(self.stream)
        end = place.former_ends.get(position.log)
        if end is None or position.made is None or position.made != place.created_at_us:
            raise LogError(
                f"stream {self.stream!r} has another log by now, {place.incarnation!r}, and no restored one of "
                f"{position.log!r}, which was read: that was deleted, or its topology was cancelled. Give the stream "
                "of this topology another name, which begins as start= says"
            )
        if position.offset > end:
            raise LogError(
                f"the log of stream {self.stream!r} was restored from a snapshot in which it ended at offset {end:,}, "
                f"and this source has read the former log up to offset {position.offset:,}: behind {end:,} the "
                "restored one has other records. Give the stream of this topology another name. With "
                f"start={{{self.stream!r}: {end}}} it begins with the first one behind the snapshot"
            )
        return msgspec.structs.replace(position, log=place.incarnation)

    async def _find_log(self) -> None:
        """Raise an error if the stream has no log. A tail would make one, with nothing from before and other offsets.

        It must not be made here: the next attempt would find it, and begin now without a word.
        """
        from millwheel.client.control import ControlClient

        async with ControlClient(self.address, patience=_PATIENCE) as client:
            routing = await client.routing(self.stream)
        if not any(consumer.log for consumer in routing.consumers):
            raise LogError(
                f"stream {self.stream!r} has no log, so nothing of what start= names is kept: what only computations "
                "read has a log from its first reader on. start='latest' in an update makes one, and begins with what "
                "comes"
            )

    async def _follow(self, position: LogPosition | None) -> Subscription:
        """A tail of the log, which does not read yet."""
        from millwheel.client.subscription import From, Subscription

        if position is not None:
            offset: int | None = position.offset
        else:
            offset = self.start[self.stream] if isinstance(self.start, dict) else None
        return Subscription(
            self.stream,
            start=From.NOW if self.start == "latest" else From.OLDEST,
            offset=offset,
            incarnation="" if position is None else position.log,
            address=self.address,
            watermarks=True,
            patience=_PATIENCE,
        )


class _LogReader(SplitReader[T, LogPosition]):
    """Reads a log by a tail, which keeps no record back.

    *Invariant (G1): where it begins is chosen once.* The first read returns that position and no record, so it is
    committed before anything is read.

    *Invariant (G7): the low watermark of a read is that of the log behind its records.* A read never says that nothing
    waits: an owner that was deposed would say so, too.
    """

    def __init__(self, source: _LogSource[T], tail: Subscription, position: LogPosition | None) -> None:
        self._source = source
        self._tail = tail
        self._at = position
        self._coming: asyncio.Future[Batch] | None = None
        self._rest: Batch | None = None
        """What the read before had no room for."""

    async def begin(self) -> None:
        """Find the log."""
        from millwheel.rpc.failures import RequestError

        try:
            await self._tail.__aenter__()
        except RequestError as error:
            if error.reason == "OFFSET_BEYOND_END" and self._at is None:
                raise LogError(f"{error.message}. start= says a later one: give an offset that it has") from error
            raise
        if self._at is not None:
            self._at = msgspec.structs.replace(self._at, made=self._tail.kept_since)

    async def read(self) -> Read[T, LogPosition]:
        if self._at is None:
            self._at = self._first()
            return Read([], self._at, MIN_TIMESTAMP, behind=self._behind(self._at))
        loop = asyncio.get_running_loop()
        seeks = self._at.since is not None and self._at.offset < self._tail.end
        end = loop.time() + (_SEEK if seeks else _WAIT)
        read: Read[T, LogPosition] = Read([], self._at, MIN_TIMESTAMP, behind=self._behind(self._at))
        # Of batches without records, the newest counts: they may come faster than reads.
        while not (read.records or read.ended) and (batch := await self._batch(end - loop.time())) is not None:
            read = self._take(self._at, self._part(batch))
        return read

    async def _batch(self, seconds: float) -> Batch | None:
        """The next batch, if it comes so soon. Otherwise it is the first one of the next read."""
        if self._rest is not None:
            rest, self._rest = self._rest, None
            return rest
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._next())
            self._coming.add_done_callback(_look_at)
        done, _ = await asyncio.wait({self._coming}, timeout=max(seconds, 0))
        if not done:
            return None
        coming, self._coming = self._coming, None
        return coming.result()

    def _first(self) -> LogPosition:
        """Where a source begins that has read nothing."""
        start, first = self._source.start, self._tail.position
        if isinstance(start, dict) and self._tail.missed:
            self._removed(f"offset {start[self._source.stream]:,} of start=", first)
        since = start if isinstance(start, int) else None
        return LogPosition(self._tail.incarnation, first, since, made=self._tail.kept_since)

    async def _next(self) -> Batch:
        return await anext(self._tail)

    def _part(self, batch: Batch) -> Batch:
        """As much of a batch as a read may have. The rest is for the next one.

        A part has no low watermark: that of the batch is behind the rest, which would be late.
        """
        most = self.most_records
        if len(batch) <= most:
            return batch
        values, times, middle = batch.values, batch.timestamps, batch.first_offset + most
        self._rest = replace(batch, first_offset=middle, values=values[most:], timestamps=times[most:])
        return replace(
            batch, values=values[:most], timestamps=times[:most], next_offset=middle, watermark=int(MIN_TIMESTAMP)
        )

    def _take(self, at: LogPosition, batch: Batch) -> Read[T, LogPosition]:
        """What a batch of the log has."""
        if batch.first_offset > at.offset:
            self._removed(f"offset {at.offset:,}, which comes next,", batch.first_offset)
        found, since, passed = list(batch), at.since, at.passed
        if since is not None:
            wanted = next((index for index, (_, time, _) in enumerate(found) if time >= since), len(found))
            if wanted == 0 and found and not passed:
                self._begins_at_once(Timestamp(since), batch.first_offset)
            since, passed = (since, passed or bool(found)) if wanted == len(found) else (None, False)
            found = found[wanted:]
        self._at = LogPosition(at.log, batch.next_offset, since, passed, at.made)
        ended = batch.watermark == MAX_TIMESTAMP
        records = [(self._value(offset, value), Timestamp(time)) for offset, time, value in found]
        behind = 0 if ended else self._behind(self._at)
        end = Timestamp(batch.watermark)
        return Read(records, self._at, end, ended, behind, places=lambda index: _place(found[index][0]))

    def _behind(self, at: LogPosition) -> int:
        return max(self._tail.end - at.offset, 1)

    def _value(self, offset: int, value: bytes) -> T | BadRecord:
        try:
            return self._source.decode(value)
        except Exception as error:
            return UnreadRecord(self._source.stream, _place(offset), error_message(error), value[:_MAX_RAW])

    def _begins_at_once(self, since: Timestamp, oldest: int) -> None:
        """The first record that is kept is as new as the beginning. So others of that time may be missing."""
        time, kept = format_timestamp(since), self._tail.kept_since
        if oldest > 0:
            self._removed(f"what is as new as start=, {time},", oldest)
        elif kept is not None:
            log.warning(
                "the log of stream %r was made at %s, and its first record is as new as start=, %s: it has nothing "
                "that was produced before it was made",
                self._source.stream, format_timestamp(Timestamp(kept)), time,
            )  # fmt: skip

    def _removed(self, what: str, oldest: int) -> None:
        """Raise an error for records that are not kept, or log it if the source is to go on with those that are."""
        wrong = (
            f"the log of stream {self._source.stream!r} keeps its records from offset {oldest:,} on: {what} may be gone"
        )
        if not self._source.skip_removed:
            raise LogError(
                f"{wrong}. skip_removed=True in an update goes on with what is there. A longer retention of the stream "
                "keeps more"
            )
        log.warning("%s; the source goes on with what is there, as skip_removed=True says", wrong)

    async def close(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
            await asyncio.wait({self._coming})
        await self._tail.close()


def _look_at(coming: asyncio.Future[Batch]) -> None:
    """Take the error of a call whose reader was closed meanwhile."""
    if not coming.cancelled():
        coming.exception()


def _place(offset: int) -> str:
    """Where a record is in the log, for people."""
    return f"offset {offset}"


@contextmanager
def _refusals(stream: str, address: str) -> Iterator[None]:
    """Raise LogError if a call in the block is refused."""
    from millwheel.rpc.failures import FailureCode, RequestError

    try:
        yield
    except RequestError as error:
        if error.code not in (FailureCode.UNAUTHENTICATED, FailureCode.PERMISSION_DENIED):
            raise
        raise LogError(
            f"the log of stream {stream!r} is refused at {address}, where a worker shows its own certificate: {error}"
        ) from error
