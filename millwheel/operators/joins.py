"""The join of two streams by key and time, in which each two records meet whose times are close enough.

The key of both sides is the same. ``record.stream`` says the side, because a join may read one stream twice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from millwheel.operators.results import check_too_late
from millwheel.sdk.computation import SAME_AS_INPUT, Computation
from millwheel.sdk.context import Context
from millwheel.sdk.durations import check_duration
from millwheel.sdk.errors import UsageError
from millwheel.sdk.records import Record, Timer
from millwheel.windows.computation import drop_record

__all__ = ["LEFT", "RIGHT", "IntervalJoin"]

L = TypeVar("L")
R = TypeVar("R")
V = TypeVar("V")
LEFT: Final = "left"
RIGHT: Final = "right"
_NONE: Final = Duration(0)
_LEFT_ENDS: Final = "left-ends"
_RIGHT_ENDS: Final = "right-ends"


class WaitingSide(msgspec.Struct, Generic[V], array_like=True):
    """The records of one side that may still find partners, ordered by time.

    They are columns, because each commit encodes the state of a key as a whole. Columns take less time than an object
    for each record.
    """

    times: list[Timestamp] = msgspec.field(default_factory=list)
    values: list[V] = msgspec.field(default_factory=list)
    found: list[bool] = msgspec.field(default_factory=list)
    """Whether each record has found a partner."""

    def insert(self, time: Timestamp, value: V, found: bool) -> int:
        """Add a record behind those of the same time. Returns its index."""
        times = self.times
        # Mostly a record is the newest.
        place = len(times) if not times or times[-1] <= time else bisect_right(times, time)
        times.insert(place, time)
        self.values.insert(place, value)
        self.found.insert(place, found)
        return place

    def drop(self, count: int) -> None:
        """Drop the first records."""
        del self.times[:count], self.values[:count], self.found[:count]


class Waiting(msgspec.Struct, Generic[L, R], array_like=True):
    """The records of one key that may still find partners."""

    left: WaitingSide[L] = msgspec.field(default_factory=WaitingSide)
    right: WaitingSide[R] = msgspec.field(default_factory=WaitingSide)


class IntervalJoin(Computation[Any, Waiting[L, R]], Generic[L, R]):
    """Joins each two records of a key whose timestamps are close to each other.

    A left record at time t meets right records from ``t - before`` to ``t + after``. A pair has the larger of both
    timestamps, and is produced as soon as both records are there. In an outer join, a record without a partner is
    produced when the low watermark shows that none can come, with its own timestamp. Records are kept for
    ``allowed_lateness`` longer, so one that is late by no more finds all its partners. One that is later meets those
    that are still kept. If there are none, and its own interval is over, it has no effect: it is produced unchanged to
    ``too_late``, or counted and dropped.

    Invariant: what :meth:`process_timer` does fits a timer of any earlier form of the join. Another form may have set
    it for a time that is too early or too late, and without a hold, because its records had no results of their own.

    Args:
        function: Returns the result of a pair. In an outer join, the missing one is None.
        output: The stream of the results.
        types: The types of the left records, the right records and the results.
        before: How far a right record may be before a left one, in microseconds.
        after: How far a right record may be after a left one, in microseconds.
        allowed_lateness: How late a record may be, in microseconds of event time.
        keep_left: Whether left records without a partner are produced.
        keep_right: Whether right records without a partner are produced.
        too_late: The stream of records that are too late to find a partner.

    Raises:
        UsageError: No time is in the interval, or a bound is probably in another unit. Or both streams have the same
            name.
    """

    def __init__(
        self,
        function: Callable[[L | None, R | None], Any],
        output: str,
        types: tuple[Any, Any, Any],
        *,
        before: Duration,
        after: Duration,
        allowed_lateness: Duration = _NONE,
        keep_left: bool = False,
        keep_right: bool = False,
        too_late: str | None = None,
    ) -> None:
        check_duration("join_within(before=...)", abs(before) if isinstance(before, int) else before, least=0)
        check_duration("join_within(after=...)", abs(after) if isinstance(after, int) else after, least=0)
        check_duration("allowed_lateness", allowed_lateness, least=0)
        if before + after < 0:
            raise UsageError(f"no time is from {before} microseconds before a record to {after} microseconds after it")
        check_too_late(output, too_late)
        left, right, self.result = types
        self.function = function
        self.output = output
        self.too_late = too_late
        self.before = before
        self.after = after
        self.allowed_lateness = allowed_lateness
        self.left_span = after + allowed_lateness
        self.right_span = before + allowed_lateness
        self.keep_left = keep_left
        self.keep_right = keep_right
        # The type arguments for L and R. They define the type of the state.
        self.__orig_class__ = IntervalJoin[left, right]  # type: ignore[valid-type]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        outputs = {self.output: self.result}
        return outputs if self.too_late is None else {**outputs, self.too_late: SAME_AS_INPUT}

    def process_record(self, ctx: Context[Waiting[L, R]], record: Record[Any]) -> None:
        """Produce all pairs of the record, and keep it for later partners."""
        at, value, waiting = record.timestamp, record.value, ctx.state
        kept: WaitingSide[Any]
        others: WaitingSide[Any]
        if is_left := record.stream == LEFT:
            kept, others, before, after, span = waiting.left, waiting.right, self.before, self.after, self.left_span
        else:
            kept, others, before, after, span = waiting.right, waiting.left, self.after, self.before, self.right_span
        found = bool(others.times) and self._meet(ctx, others, at - before, at + after, at, value, is_left)
        if record.late and not found and self._is_lost(ctx, at, span, self.keep_left if is_left else self.keep_right):
            drop_record(ctx, record, self.too_late)
            if not kept.times and not others.times:
                del ctx.state
            return
        place = kept.insert(at, value, found)
        # Where the watermark has passed the timer and its record is here, the timer is due, or of an earlier form.
        ends = kept.times[0] + span
        if not place or (ends < MAX_TIMESTAMP and ends < ctx.watermark):
            tag, alone = (_LEFT_ENDS, self.keep_left) if is_left else (_RIGHT_ENDS, self.keep_right)
            self._wake(ctx, kept, span, tag, alone)

    def _is_lost(self, ctx: Context[Any], at: int, span: int, alone: bool) -> bool:
        """Whether a late record without a partner has no effect: its partners may be dropped, and none can come.

        ``alone``: it has a result without one.
        """
        return not alone and at + max(span, self.allowed_lateness) < ctx.watermark

    def _meet(
        self,
        ctx: Context[Any],
        others: WaitingSide[Any],
        first: int,
        last: int,
        at: Timestamp,
        value: Any,
        is_left: bool,
    ) -> bool:
        """Produce the pairs of a record with ``others`` from ``first`` to ``last``. Returns whether there are any."""
        times = others.times
        low = 0 if times[0] >= first else bisect_left(times, first)
        high = len(times) if times[-1] <= last else bisect_right(times, last)
        others.found[low:high] = [True] * (high - low)
        function, output = self.function, self.output
        for time, other in zip(times[low:high], others.values[low:high], strict=True):
            pair = function(value, other) if is_left else function(other, value)
            ctx.produce(output, pair, timestamp=at if at > time else time)
        return low < high

    def _wake(self, ctx: Context[Any], kept: WaitingSide[Any], span: int, tag: str, alone: bool) -> None:
        """Set the timer for the first record of ``kept``. ``alone``: it is produced then, if it has no partner."""
        time = kept.times[0]
        hold = time if alone else None
        ctx.set_timer(Timestamp(min(max(time + span, MIN_TIMESTAMP) + 1, MAX_TIMESTAMP)), tag, hold=hold)

    def process_timer(self, ctx: Context[Waiting[L, R]], timer: Timer) -> None:
        """Drop the records of one side that can find no more partners, and produce those that never found one."""
        waiting, is_left = ctx.state, timer.tag == _LEFT_ENDS
        kept: WaitingSide[Any] = waiting.left if is_left else waiting.right
        span, alone = (self.left_span, self.keep_left) if is_left else (self.right_span, self.keep_right)
        # The watermark is at least the timer's time. So partners up to one microsecond before it have arrived.
        # At the end of time no record can come, however long the interval is. A timer set again would fire at once.
        ended = timer.timestamp == MAX_TIMESTAMP
        over = len(kept.times) if ended else bisect_left(kept.times, timer.timestamp - span)
        for index in range(over if alone else 0):
            if not kept.found[index]:
                value = kept.values[index]
                result = self.function(value, None) if is_left else self.function(None, value)
                # Only a timer that an inner join has set is later: it held no watermark back.
                at = Timestamp(max(kept.times[index], ctx._earliest))
                ctx.produce(self.output, result, timestamp=at)
        kept.drop(over)
        if kept.times:
            self._wake(ctx, kept, span, timer.tag, alone)
        elif not waiting.left.times and not waiting.right.times:
            del ctx.state
