"""A source as two computations: one finds its splits, the other reads them (sections 4.1, 5.2).

The key of the first is "", and it begins by itself. It produces each split once, to a stream that the second reads. A
key of the second is a split. Its state has the position, and its hold is the low watermark of the split.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from operator import attrgetter
from types import NoneType
from typing import Any, Final, Generic, TypeVar, get_args

import msgspec

from millwheel.connectors.handles import CALL_SECONDS, Handles
from millwheel.connectors.pacing import Timing
from millwheel.connectors.source import (
    MAX_RECORDS,
    BadRecord,
    BadRecordError,
    Read,
    Source,
    SplitReader,
    UnlikelyTimeError,
    UnreadRecord,
)
from millwheel.connectors.table_reads import TableRecords, plain_fields
from millwheel.model.time import LAST_TIMESTAMP, MIN_TIMESTAMP, TimeDomain, TimeInt, Timestamp, from_datetime
from millwheel.model.units import (
    MAX_AHEAD_US,
    NEWEST_USUAL_US,
    OLDEST_USUAL_US,
    describe_unlikely,
    is_likely,
    wrong_unit,
)
from millwheel.rpc.columns import RecordColumns, extremes_of, has_columns
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import KeyExtractionError, TooLargeError, UsageError
from millwheel.sdk.records import Record, Timer

__all__ = ["MAX_BYTES", "MAX_SPLITS", "FindSplits", "ReadSplits", "Split", "SplitState"]

P = TypeVar("P")
log = logging.getLogger(__name__)

MAX_SPLITS: Final = 100_000
"""The most splits of a source. The names of all of them are one state."""
MAX_BYTES: Final = 16 << 20
"""The most of one read (G13): the records as they are stored, and what they become for consumers of their stream."""
_REMEDY: Final = (
    "it is tried again by itself, and cannot be given up: see whether the source can be reached and has the split, or "
    "mend its code; then `millwheel topology update`"
)
_MAX_READS_AT_ONE_TIME: Final = 100
_LEAST_AT_A_RATE: Final = 1_000
"""A read may have so many, however low its rate is."""
_MOST_ONE_BY_ONE: Final = 2_000
"""The most of a read whose records are produced one by one: with some derived streams, ten milliseconds of work."""
_PAUSE_US: Final = 100_000
"""A clock that stands still, as in a test, lets a split read so often. Then it must pass so many microseconds."""
_MANY_BAD: Final = 10
"""If so many records of a split cannot be read, and most of it, the log says so."""
_MAX_RAW: Final = 1_000
"""The most characters of a bad record's value."""
_UNREAD: Final = frozenset[type]({UnreadRecord})
_MAX_ERROR: Final = 10_000
"""The most characters of a bad record's error: a function of the program may have raised it."""


class Split(msgspec.Struct, frozen=True):
    """A split that was found."""

    name: str


class Found(msgspec.Struct):
    """The state of the search: the splits that were found."""

    names: list[str] = []


class SplitState(msgspec.Struct, Generic[P]):
    """How far a split was read."""

    position: P | None = None
    """Where the next read begins. None: at the beginning."""
    watermark: TimeInt = int(MIN_TIMESTAMP)
    """No later record of the split is older, except late ones."""
    records: int = 0
    """How many records were read."""
    behind: int | None = None
    """How many records waited in the split after the last read, if the source knows."""
    read_at: TimeInt = 0
    """When the last record was read, by the wall clock."""
    ended: bool = False
    """Whether the split has no more records."""
    waits: bool = False
    """Whether it does not read, because slower splits are too far behind it (``allowed_skew``)."""
    bad: int = 0
    """How many of ``records`` could not be read. The stream of ``bad=`` got them."""


class FindSplits(Computation[None, Found]):
    """Finds the splits of a source, and produces each of them once."""

    _begins_with = ""
    _remedy = _REMEDY

    def __init__(self, source: Source[Any, Any], identity: str, output: str, timing: Timing) -> None:
        self._source = source
        self._identity = identity
        self._output = output
        self._timing = timing

    def declared_outputs(self) -> Mapping[str, Any]:
        return {self._output: Split}

    def _implementation(self) -> type:
        return type(self._source)

    def _reads(self) -> str:
        return self._identity

    def process_record(self, ctx: Context[Found], record: Record[None]) -> None:
        raise AssertionError("a computation without inputs gets no record")

    async def process_timer(self, ctx: Context[Found], timer: Timer) -> None:
        began = ctx.now
        async with asyncio.timeout(CALL_SECONDS):
            splits = await self._source.splits()
        known = set(ctx.state.names)
        if len(known.union(splits.names)) > MAX_SPLITS:
            raise UsageError(
                f"the source has more than {MAX_SPLITS:,} splits by now: let a split have several of its parts, such "
                "as all files of a day, and give the stream another name, which begins without any"
            )
        for name in splits.names:
            if name not in known:
                known.add(name)
                ctx.state.names.append(name)
                # It has the time of the hold, and holds the watermark until its reader does.
                ctx.produce(self._output, Split(name), timestamp=Timestamp(ctx._earliest))
        if not splits.final:
            oldest = splits.no_older_than
            oldest = Timestamp(began - self._timing.out_of_order) if oldest is None else oldest
            again = Timestamp(ctx.now + self._timing.find_every)
            ctx.set_timer(again, domain=TimeDomain.PROCESSING_TIME, hold=Timestamp(min(oldest, LAST_TIMESTAMP)))


class ReadSplits(Computation[Split, SplitState[P]], Generic[P]):
    """Reads the splits of a source, each as a key."""

    _feeds = True
    _remedy = _REMEDY

    def __init__(
        self,
        source: Source[Any, P],
        identity: str,
        output: str,
        record_type: Any,
        timing: Timing,
        timestamp: str | Callable[[Any], Timestamp | datetime] | None,
        bad: str | None,
    ) -> None:
        self._source = source
        self._identity = identity
        self._output = output
        self._type = record_type
        self._timing = timing
        self._timestamp = attrgetter(timestamp) if isinstance(timestamp, str) else timestamp
        self._why_rows = source._why_one_by_one(record_type)
        """Why each of its records has a value. Empty: reads may be columns."""
        self._time_column = ""
        """The column of the times, where a read is columns. Empty: the time is that of the read."""
        if not self._why_rows and timestamp is not None:
            self._why_rows, self._time_column = _time_column(record_type, timestamp)
        self._bad = bad
        has_bad = BadRecord in (record_type, *get_args(record_type))
        self._bad_class: frozenset[type] = _UNREAD if has_bad else _UNREAD | {BadRecord}
        """The classes of values that could not be read. In a stream of BadRecords, a plain one is a record."""
        self._readers = Handles[SplitReader[Any, P]]()
        self._reads_at: dict[str, tuple[int, int]] = {}
        """By split: the time of the last read, and how many there were at that time."""
        self._most: dict[str, int] = {}
        """By split: the most records of its next read, since those of a former read were too many bytes."""
        self._has_warned = False
        self._last_error = ""

    def declared_outputs(self) -> Mapping[str, Any]:
        outputs = {self._output: self._type}
        return outputs if self._bad is None else {**outputs, self._bad: BadRecord}

    def _implementation(self) -> type:
        return type(self._source)

    def _reads(self) -> str:
        return self._identity

    def _why_one_by_one(self, output: str) -> str | None:
        return (self._why_rows or None) if output == self._output else ""

    @property
    def output(self) -> str:
        """The stream that it reads into."""
        return self._output

    @property
    def has_times_of_reading(self) -> bool:
        """Whether the event time of each record is that of its read: neither the program nor the source says one."""
        return self._timestamp is None and not self._source._says_times

    async def _close(self) -> None:
        await self._readers.close()

    def process_record(self, ctx: Context[SplitState[P]], record: Record[Split]) -> None:
        # Nothing is known of its records. If the watermark is ahead of them, this hold keeps it where it is.
        ctx.set_timer(ctx.now, domain=TimeDomain.PROCESSING_TIME, hold=MIN_TIMESTAMP)

    async def process_timer(self, ctx: Context[SplitState[P]], timer: Timer) -> None:
        state, split, began = ctx.state, ctx.key, ctx.now
        state.waits = self._timing.too_far_ahead(state.watermark, ctx._scope.own_low_watermark(), ctx.watermark)
        if state.waits:
            self._read_again(ctx, self._timing.pause_after_nothing(began - state.read_at))
            return
        position = state.position
        async with self._readers.use(split, position, lambda: self._source.open_reader(split, position)) as used:
            used.handle.most_records = min(self._most.get(split, MAX_RECORDS), self._most_for_all(ctx))
            used.handle._takes_tables = self._takes_tables(ctx)
            async with asyncio.timeout(CALL_SECONDS):
                read = await used.handle.read()
            before, newest = state.bad, None
            if isinstance(read.records, TableRecords):
                newest = self._produce_table(ctx, read.records, began)
                if newest is None:
                    await read.records.load()
            self._take(ctx, state, read, began, newest)
            self._count(ctx, read, state.bad - before)
            if state.bad > before:
                self._warn(ctx, state)
            if read.ended:
                self._reads_at.pop(split, None)
                self._most.pop(split, None)
            else:
                used.ends_at(read.position)

    def _count(self, ctx: Context[SplitState[P]], read: Read[Any, P], bad: int) -> None:
        """Count a read for operators. All that the key has produced is of it: a commit has one read of a key."""
        scope = ctx._scope
        if scope.connector is not None:
            # Not what derived streams make of the records.
            read_into = [scope.outputs[name].stream for name in (self._output, self._bad) if name is not None]
            sizes = [] if ctx._read is None else ctx._read.sizes()
            sizes += [len(one.value) for one in ctx._productions or () if one.stream in read_into]
            scope.connector.has_read(
                *(read_into[0], ctx.key, sizes, read.behind),
                ended=read.ended,
                lost=read.lost,
                bad=bad,
                bad_stream=read_into[-1],
                last_error=self._last_error,
            )

    def _warn(self, ctx: Context[SplitState[P]], state: SplitState[P]) -> None:
        """Log once in this process that most records of a split cannot be read: then the program is wrong, not they."""
        if not self._has_warned and state.bad >= _MANY_BAD and 2 * state.bad > state.records:
            self._has_warned = True
            log.warning(
                "source %s/%s: %d of the %d records of split %r cannot be read, and went to stream %r. The last error: "
                "%s. If that is not meant, correct timestamp= or the type of the records, and read again under "
                "another name of the stream",
                *(ctx._scope.topology, self._output, state.bad, state.records, ctx.key, self._bad, self._last_error),
            )

    def _take(
        self,
        ctx: Context[SplitState[P]],
        state: SplitState[P],
        read: Read[Any, P],
        began: Timestamp,
        newest: int | None,
    ) -> None:
        """Produce what was read, and set the timer of the next read.

        ``began``: when the read began. ``newest``: the newest time of its records, if they are produced.
        """
        if len(read.records) > MAX_RECORDS:
            raise UsageError(f"a read has {len(read.records):,} records: return {MAX_RECORDS:,} at most")
        ctx._earliest = int(MIN_TIMESTAMP)  # records of a source may be late, as those of an injector
        # Times in another unit are found by comparison with the cause. With 0, none is looked for.
        ctx._cause = 0 if self._takes_any_time() else began
        if newest is None:
            newest = self._produce(ctx, state, read, began)
        newest = max(state.watermark, newest - self._timing.out_of_order)
        ctx._cause = began
        self._let_grow(ctx, len(read.records))
        watermark = newest if read.watermark is None else max(state.watermark, read.watermark)
        state.position, state.behind, state.ended = read.position, read.behind, read.ended
        state.records += len(read.records)
        if read.records or not state.read_at:
            state.read_at = began
        if self._is_idle(state, began):
            # What comes to the split after the beginning of the read has a later time.
            watermark = max(watermark, began - self._timing.out_of_order)
        state.watermark = min(watermark, LAST_TIMESTAMP)
        if not read.ended:
            self._read_again(ctx, self._pause(ctx, read, began))

    def _read_again(self, ctx: Context[SplitState[P]], pause: int) -> None:
        """Set the timer of the next read. Until then it holds the watermark."""
        at, hold = Timestamp(ctx.now + pause), Timestamp(ctx.state.watermark)
        ctx.set_timer(at, domain=TimeDomain.PROCESSING_TIME, hold=hold)

    def _produce(self, ctx: Context[SplitState[P]], state: SplitState[P], read: Read[Any, P], began: Timestamp) -> int:
        """Produce the records. Returns their newest time."""
        known = self._known_time(ctx, began)
        times = self._times(read)
        newest = self._produce_all(ctx, read, times, began, known)
        if newest is None:
            newest = self._produce_each(ctx, state.records, read, times, began, known)
        return newest

    def _most_for_all(self, ctx: Context[SplitState[P]]) -> int:
        """How many records a read may have here, of any size.

        The names of its consumers take half of ``MAX_BYTES`` at most. Derived streams make each record one by one.
        And a read at a limited rate is soon over.
        """
        output = ctx._scope.outputs[self._output]
        each = sum(len(consumer) for consumer, _ in output.key_columns or ())
        most = min(MAX_RECORDS, MAX_BYTES // 2 // max(each, 1))
        if output.derived:
            most = min(most, _MOST_ONE_BY_ONE)
        rate = self._timing.records_per_second or MAX_RECORDS
        return min(most, max(_LEAST_AT_A_RATE, int(rate)))

    def _takes_tables(self, ctx: Context[SplitState[P]]) -> bool:
        """Whether a read may be columns, as far as the program and the consumers of today say it."""
        output = ctx._scope.outputs[self._output]
        return not self._why_rows and not output.derived and output.key_columns is not None and has_columns()

    def _produce_table(self, ctx: Context[SplitState[P]], table: TableRecords, began: Timestamp) -> int | None:
        """Produce records that are columns, if each has a usual time, and keys for all consumers.

        Returns their newest time. None: nothing is produced, and each record needs a value.
        """
        times = table.times(self._time_column, began)
        if not times:
            return None
        least, newest = extremes_of(times)
        if least < OLDEST_USUAL_US or newest > self._latest_usual(self._known_time(ctx, began)):
            return None
        records = RecordColumns(table.batch, times)
        return newest if ctx._produce_table(ctx._scope.outputs[self._output], records, MAX_BYTES) else None

    @staticmethod
    def _latest_usual(known: int) -> int:
        """The latest time that needs no look at a record. ``known``: see ``_known_time``."""
        return min(known + MAX_AHEAD_US, NEWEST_USUAL_US) if known else NEWEST_USUAL_US

    def _times(self, read: Read[Any, P]) -> list[Timestamp | Exception | None]:
        """The time of each record or None, or the error of the program's function for it.

        The function is called once for each record, because it may change the value.
        """
        find = self._timestamp
        if find is None:
            return [stated for _, stated in read.records]
        return [None if type(value) in self._bad_class else _time_or_error(find, value) for value, _ in read.records]

    def _produce_all(
        self, ctx: Context[SplitState[P]], read: Read[Any, P], times: list[Any], began: Timestamp, known: int
    ) -> int | None:
        """Produce all records at once, if each has a value, and each a usual time or none.

        Almost all reads of streams without derived ones are so. Returns their newest time. None: nothing is produced.
        """
        output = ctx._scope.outputs[self._output]
        if output.derived:
            return None
        latest = self._latest_usual(known)
        values: list[Any] = [value for value, _ in read.records]
        if self._bad_class & set(map(type, values)):
            return None
        kinds = set(map(type, times))
        if kinds == {NoneType}:
            times, kinds = [began] * len(times), {int}
        if kinds != {int}:
            return None
        newest: int = max(times)
        if min(times) < OLDEST_USUAL_US or newest > latest:
            return None
        return newest if ctx._produce_all(output, values, times, MAX_BYTES) else None

    def _produce_each(
        self,
        ctx: Context[SplitState[P]],
        records_before: int,
        read: Read[Any, P],
        times: list[Timestamp | Exception | None],
        began: Timestamp,
        known: int,
    ) -> int:
        """Produce the records one by one. Returns their newest time. ``records_before``: those of the split."""
        newest = int(MIN_TIMESTAMP)
        for index, ((value, _), at) in enumerate(zip(read.records, times, strict=True)):
            if ctx._produced > MAX_BYTES:
                raise self._too_many_bytes(ctx, index, len(read.records))
            if type(value) in self._bad_class:
                self._produce_bad(ctx, value)
                continue
            before = ctx._produced
            try:
                if isinstance(at, Exception):
                    raise at
                if at is None:
                    at = began
                elif known and type(at) is int and not is_likely(at, known):  # produce refuses other types
                    _refuse_unlikely(at, began)
                ctx.produce(self._output, value, timestamp=at)
            except Exception as error:
                # What other topologies make of the record is no matter of the source. And a clock's unit is one of all.
                if ctx._produced != before or isinstance(error, UsageError | KeyExtractionError):
                    raise
                number = records_before + index + 1
                place = f"record {number} since the beginning" if read.places is None else read.places(index)
                self._produce_unfit(ctx, value, place, error)
                continue
            newest = max(newest, at)
        return newest

    def _produce_unfit(self, ctx: Context[SplitState[P]], value: Any, place: str, error: Exception) -> None:
        """Produce a record that the stream cannot have as a bad one, or raise the error."""
        if self._bad is None and not isinstance(error, TooLargeError | UnlikelyTimeError):
            raise error
        if isinstance(error, UnlikelyTimeError):
            text = str(error)
        else:
            text = error.fault if isinstance(error, TooLargeError) else error_message(error)
        raw = repr(value)[:_MAX_RAW].encode(errors="replace")
        self._produce_bad(ctx, BadRecord(ctx.key, place, text, raw))

    def _takes_any_time(self) -> bool:
        """Whether records may have any time: the option allows it, or their times were checked before."""
        return self._timing.any_timestamp or (self._source._times_are_checked and self._timestamp is None)

    def _known_time(self, ctx: Context[SplitState[P]], began: Timestamp) -> int:
        """The time that records may be a year ahead of. 0: they may have any.

        The clock of a worker may be years behind. Then what the split had already says more, since bad records are
        never read again. A clock before 1980 says nothing.
        """
        scope, known = ctx._scope, max(began, ctx.state.watermark)
        if scope.any_timestamp or self._takes_any_time() or known < OLDEST_USUAL_US:
            return 0
        return known if scope.real_clock else max(known, NEWEST_USUAL_US)

    def _too_many_bytes(self, ctx: Context[SplitState[P]], fit: int, count: int) -> UsageError:
        """The error of a read whose first ``fit`` records of ``count`` have too many bytes. The next read has fewer.

        *Invariant (G13): a commit has the most bytes of a read, and those of one record more.* One record alone is
        taken: its value has a limit of its own.
        """
        self._most[ctx.key] = most = max(fit // 2, 1)
        return UsageError(
            f"split {ctx.key!r}: the first {fit:,} of {count:,} records of a read have {ctx._produced:,} bytes as they "
            f"are stored, and {MAX_BYTES:,} is the limit. The next read gets {most:,} records. If this goes on, "
            "the source's reader returns more records than its most_records"
        )

    def _let_grow(self, ctx: Context[SplitState[P]], count: int) -> None:
        """Let the next read of a split have more records, if those of this one were few bytes."""
        most = self._most.get(ctx.key, MAX_RECORDS)
        if most < MAX_RECORDS and count >= most and ctx._produced * 4 <= MAX_BYTES:
            self._most[ctx.key] = min(2 * most, MAX_RECORDS)

    def _pause(self, ctx: Context[SplitState[P]], read: Read[Any, P], began: Timestamp) -> int:
        """How long the split waits for its next read, in microseconds."""
        if not read.records:
            return self._timing.pause_after_nothing(began - ctx.state.read_at)
        last, count = self._reads_at.get(ctx.key, (began, 0))
        count = count + 1 if last == began else 1
        self._reads_at[ctx.key] = began, count
        at_least = 0 if count < _MAX_READS_AT_ONE_TIME else _PAUSE_US
        return max(at_least, self._timing.pause_after(len(read.records)) - (ctx.now - began))

    def _produce_bad(self, ctx: Context[SplitState[P]], bad: BadRecord) -> None:
        if self._bad is None:
            raise BadRecordError(bad)
        cut = BadRecord(bad.split, bad.place, bad.error[:_MAX_ERROR], bad.raw)
        ctx.produce(self._bad, cut, timestamp=ctx.now)
        ctx.state.bad += 1
        self._last_error = cut.error

    def _is_idle(self, state: SplitState[P], now: int) -> bool:
        """Whether the split has had nothing for long, and says that nothing waits in it."""
        after = self._timing.idle_after
        if after is not None and state.behind is None and not state.ended:
            raise UsageError(
                "idle_after= needs a source whose reads say how many records are behind them: with Read(..., behind=0) "
                "a split has nothing more for now"
            )
        return after is not None and state.behind == 0 and now - state.read_at >= after


def _time_column(record_type: Any, timestamp: object) -> tuple[str, str]:
    """Why no column has the times of records, or the column that has them."""
    if not isinstance(timestamp, str):
        return "timestamp= is a function, and needs values: name a field", ""
    fields = plain_fields(record_type)
    for one in fields if not isinstance(fields, str) else ():
        if one.attribute == timestamp and one.kind is int:
            return "", one.name
    return f"the field {timestamp!r} of timestamp= is no Timestamp and no int", ""


def _refuse_unlikely(at: Timestamp, now: int) -> None:
    """Raise UnlikelyTimeError. A time in another unit is left to ``produce``: all records have that."""
    if not wrong_unit(at, now):
        raise UnlikelyTimeError(f"{describe_unlikely(at)}; if that is meant, give source(..., any_timestamp=True)")


def _time_or_error(find: Callable[[Any], Timestamp | datetime], value: Any) -> Timestamp | Exception:
    """The time that the program's function finds for a record, or its error. A datetime needs a time zone."""
    try:
        given = find(value)
        return from_datetime(given) if isinstance(given, datetime) else given
    except Exception as error:
        return error
