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
LEFT: Final = "left"
RIGHT: Final = "right"
_NO_LATENESS: Final = Duration(0)
_LEFT_ENDS: Final = "left-ends"
_RIGHT_ENDS: Final = "right-ends"


_Columns = tuple[list[Timestamp], list[Any], list[bool]]
"""The records of a side, ordered by time: timestamps, values, and whether each has found a partner."""


class Waiting(msgspec.Struct, Generic[L, R], array_like=True):
    """The records of one key that may still find partners, as columns of each side.

    Each commit encodes the state of a key as a whole. Columns take less time than an object for each record. The times
    of both sides come first. So a state of the form before, a list of triples for each side, is refused, not misread.
    """

    left_times: list[Timestamp] = msgspec.field(default_factory=list)
    right_times: list[Timestamp] = msgspec.field(default_factory=list)
    left: list[L] = msgspec.field(default_factory=list)
    right: list[R] = msgspec.field(default_factory=list)
    left_found: list[bool] = msgspec.field(default_factory=list)
    right_found: list[bool] = msgspec.field(default_factory=list)

    def side(self, left: bool) -> _Columns:
        """The columns of one side."""
        if left:
            return self.left_times, self.left, self.left_found
        return self.right_times, self.right, self.right_found


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
        allowed_lateness: Duration = _NO_LATENESS,
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
        if is_left := record.stream == LEFT:
            before, after, span = self.before, self.after, self.left_span
        else:
            before, after, span = self.after, self.before, self.right_span
        others = waiting.side(not is_left)
        found = bool(others[0]) and self._meet(ctx, others, at - before, at + after, at, value, is_left)
        if record.late and not found and self._is_lost(ctx, at, span, self.keep_left if is_left else self.keep_right):
            drop_record(ctx, record, self.too_late)
            if not waiting.left and not waiting.right:
                del ctx.state
            return
        times, values, marks = waiting.side(is_left)
        # Mostly a record is the newest.
        place = len(times) if not times or times[-1] <= at else bisect_right(times, at)
        times.insert(place, at)
        values.insert(place, value)
        marks.insert(place, found)
        # Where the watermark has passed the timer and its record is here, the timer is due, or of an earlier form.
        ends = times[0] + span
        if not place or (ends < MAX_TIMESTAMP and ends < ctx.watermark):
            tag, alone = (_LEFT_ENDS, self.keep_left) if is_left else (_RIGHT_ENDS, self.keep_right)
            self._wake(ctx, times[0], span, tag, alone)

    def _is_lost(self, ctx: Context[Any], at: int, span: int, alone: bool) -> bool:
        """Whether a late record without a partner has no effect: its partners may be dropped, and none can come.

        ``alone``: it has a result without one.
        """
        return not alone and at + max(span, self.allowed_lateness) < ctx.watermark

    def _meet(
        self, ctx: Context[Any], others: _Columns, first: int, last: int, at: Timestamp, value: Any, is_left: bool
    ) -> bool:
        """Produce the pairs of a record with ``others`` from ``first`` to ``last``. Returns whether there are any."""
        times, values, marks = others
        low = 0 if times[0] >= first else bisect_left(times, first)
        high = len(times) if times[-1] <= last else bisect_right(times, last)
        if low == high:
            return False
        marks[low:high] = [True] * (high - low)
        function, output = self.function, self.output
        for time, other in zip(times[low:high], values[low:high], strict=True):
            pair = function(value, other) if is_left else function(other, value)
            ctx.produce(output, pair, timestamp=at if at > time else time)
        return True

    def _wake(self, ctx: Context[Any], time: Timestamp, span: int, tag: str, alone: bool) -> None:
        """Set the timer for the first record of a side. ``alone``: it is produced then, if it has no partner."""
        hold = time if alone else None
        ctx.set_timer(Timestamp(min(max(time + span, MIN_TIMESTAMP) + 1, MAX_TIMESTAMP)), tag, hold=hold)

    def process_timer(self, ctx: Context[Waiting[L, R]], timer: Timer) -> None:
        """Drop the records of one side that can find no more partners, and produce those that never found one."""
        waiting, is_left = ctx.state, timer.tag == _LEFT_ENDS
        times, values, marks = waiting.side(is_left)
        span, alone = (self.left_span, self.keep_left) if is_left else (self.right_span, self.keep_right)
        # The watermark is at least the timer's time. So partners up to one microsecond before it have arrived.
        # At the end of time no record can come, however long the interval is. A timer set again would fire at once.
        ended = timer.timestamp == MAX_TIMESTAMP
        over = len(times) if ended else bisect_left(times, timer.timestamp - span)
        for time, value, found in zip(times[:over], values[:over], marks[:over], strict=True) if alone else ():
            if not found:
                result = self.function(value, None) if is_left else self.function(None, value)
                # Only a timer that an inner join has set is later: it held no watermark back.
                ctx.produce(self.output, result, timestamp=Timestamp(max(time, ctx._earliest)))
        del times[:over], values[:over], marks[:over]
        if times:
            self._wake(ctx, times[0], span, timer.tag, alone)
        elif not waiting.left and not waiting.right:
            del ctx.state
