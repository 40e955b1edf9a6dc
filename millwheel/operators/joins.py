"""Joins of two streams by key: within an interval of time, and with the value as of a time.

The key of both sides is the same. ``record.stream`` says the side, because a join may read one stream twice.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from millwheel.operators.results import check_too_late
from millwheel.sdk.computation import SAME_AS_INPUT, Computation
from millwheel.sdk.context import Context
from millwheel.sdk.durations import check_duration
from millwheel.sdk.errors import UsageError
from millwheel.sdk.ranking import rank_bytes
from millwheel.sdk.records import Record, Timer
from millwheel.windows.computation import drop_record

__all__ = ["LEFT", "RIGHT", "IntervalJoin", "TemporalJoin"]

L = TypeVar("L")
R = TypeVar("R")
LEFT: Final = "left"
RIGHT: Final = "right"
_NONE: Final = Duration(0)
_LEFT_ENDS: Final = "left-ends"
_RIGHT_ENDS: Final = "right-ends"


class Waiting(msgspec.Struct, Generic[L, R], array_like=True):
    """The records of one key that may still find partners: (timestamp, value, whether it has found one)."""

    left: list[tuple[int, L, bool]] = msgspec.field(default_factory=list)
    right: list[tuple[int, R, bool]] = msgspec.field(default_factory=list)


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
        kept: list[Any]
        others: list[Any]
        if is_left := record.stream == LEFT:
            kept, others, before, after, span = waiting.left, waiting.right, self.before, self.after, self.left_span
        else:
            kept, others, before, after, span = waiting.right, waiting.left, self.after, self.before, self.right_span
        found = bool(others) and self._meet(ctx, others, at - before, at + after, at, value, is_left)
        if record.late and not found and self._is_lost(ctx, at, span, self.keep_left if is_left else self.keep_right):
            drop_record(ctx, record, self.too_late)
            if not kept and not others:
                del ctx.state
            return
        # Mostly a record is the newest. A tuple of a time alone comes before all records of this time. So no values are
        # compared.
        place = len(kept) if not kept or kept[-1][0] <= at else bisect_left(kept, (at + 1,))
        kept.insert(place, (at, value, found))
        # Where the watermark has passed the timer and its record is here, the timer is due, or of an earlier form.
        ends = kept[0][0] + span
        if not place or (ends < MAX_TIMESTAMP and ends < ctx.watermark):
            tag, alone = (_LEFT_ENDS, self.keep_left) if is_left else (_RIGHT_ENDS, self.keep_right)
            self._wake(ctx, kept, span, tag, alone)

    def _is_lost(self, ctx: Context[Any], at: int, span: int, alone: bool) -> bool:
        """Whether a late record without a partner has no effect: its partners may be dropped, and none can come.

        ``alone``: it has a result without one.
        """
        return not alone and at + max(span, self.allowed_lateness) < ctx.watermark

    def _meet(
        self, ctx: Context[Any], others: list[Any], first: int, last: int, at: Timestamp, value: Any, is_left: bool
    ) -> bool:
        """Produce the pairs of a record with ``others`` from ``first`` to ``last``. Returns whether there are any."""
        low = 0 if others[0][0] >= first else bisect_left(others, (first,))
        high = len(others) if others[-1][0] <= last else bisect_left(others, (last + 1,))
        function, output = self.function, self.output
        for index in range(low, high):
            time, other, found = others[index]
            if not found:
                others[index] = (time, other, True)
            pair = function(value, other) if is_left else function(other, value)
            ctx.produce(output, pair, timestamp=at if at > time else time)
        return low < high

    def _wake(self, ctx: Context[Any], kept: list[Any], span: int, tag: str, alone: bool) -> None:
        """Set the timer for the first record of ``kept``. ``alone``: it is produced then, if it has no partner."""
        time = kept[0][0]
        hold = Timestamp(time) if alone else None
        ctx.set_timer(Timestamp(min(max(time + span, MIN_TIMESTAMP) + 1, MAX_TIMESTAMP)), tag, hold=hold)

    def process_timer(self, ctx: Context[Waiting[L, R]], timer: Timer) -> None:
        """Drop the records of one side that can find no more partners, and produce those that never found one."""
        waiting, is_left = ctx.state, timer.tag == _LEFT_ENDS
        kept: list[Any] = waiting.left if is_left else waiting.right
        span, alone = (self.left_span, self.keep_left) if is_left else (self.right_span, self.keep_right)
        # The watermark is at least the timer's time. So partners up to one microsecond before it have arrived.
        # At the end of time no record can come, however long the interval is. A timer set again would fire at once.
        ended = timer.timestamp == MAX_TIMESTAMP
        over = len(kept) if ended else bisect_left(kept, (timer.timestamp - span,))
        for time, value, found in kept[:over]:
            if alone and not found:
                result = self.function(value, None) if is_left else self.function(None, value)
                # Only a timer that an inner join has set is later: it held no watermark back.
                ctx.produce(self.output, result, timestamp=Timestamp(max(time, ctx._earliest)))
        del kept[:over]
        if kept:
            self._wake(ctx, kept, span, timer.tag, alone)
        elif not waiting.left and not waiting.right:
            del ctx.state


class Versions(msgspec.Struct, Generic[L, R], array_like=True):
    """The left records of a key that wait for their time, and the right values by the time from which they hold."""

    left: list[tuple[int, L]] = msgspec.field(default_factory=list)
    right: list[tuple[int, R]] = msgspec.field(default_factory=list)


class TemporalJoin(Computation[Any, Versions[L, R]], Generic[L, R]):
    """Joins each left record with the right value of its key as of its timestamp.

    That is the right record with the largest timestamp up to its own. The result is produced when the low watermark has
    passed the left record. So it depends on the timestamps alone, and not on the order in which records arrive. A right
    value is kept until a newer one holds for all left records to come.

    Args:
        function: Returns the result of a left value and the right one, or None if there is none.
        output: The stream of the results. They have the timestamps of the left records.
        types: The types of the left records, the right records and the results.
        keep_left: Whether a left record without a right value is produced.
    """

    def __init__(
        self,
        function: Callable[[L, R | None], Any],
        output: str,
        types: tuple[Any, Any, Any],
        *,
        keep_left: bool = False,
    ) -> None:
        left, right, self.result = types
        self.function = function
        self.output = output
        self.keep_left = keep_left
        # The type arguments for L and R. They define the type of the state.
        self.__orig_class__ = TemporalJoin[left, right]  # type: ignore[valid-type]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.result}

    def process_record(self, ctx: Context[Versions[L, R]], record: Record[Any]) -> None:
        """Keep a left record until its time, and a right one from its time on."""
        at, versions = record.timestamp, ctx.state
        if record.stream == LEFT:
            new = at, record.value
            versions.left.insert(bisect_left(versions.left, (at + 1,)), new)
            if versions.left[0] is new:
                self._wake(ctx, versions)
            return
        right, new = versions.right, (at, record.value)
        place = bisect_left(right, (at + 1,))
        if place and right[place - 1][0] == at:
            insort(right, new, key=_by_time_and_bytes)
        else:
            right.insert(place, new)
        self._prune(ctx, versions)

    def process_timer(self, ctx: Context[Versions[L, R]], timer: Timer) -> None:
        """Produce the results of the left records whose time has come."""
        versions = ctx.state
        ready = bisect_left(versions.left, (timer.timestamp,))
        for time, value in versions.left[:ready]:
            index = bisect_left(versions.right, (time + 1,))
            if index or self.keep_left:
                result = self.function(value, versions.right[index - 1][1] if index else None)
                ctx.produce(self.output, result, timestamp=Timestamp(time))
        del versions.left[:ready]
        if versions.left:
            self._wake(ctx, versions)
        self._prune(ctx, versions)

    def _wake(self, ctx: Context[Any], versions: Versions[L, R]) -> None:
        time = versions.left[0][0]
        ctx.set_timer(Timestamp(min(time + 1, MAX_TIMESTAMP)), hold=Timestamp(time))

    def _prune(self, ctx: Context[Any], versions: Versions[L, R]) -> None:
        """Drop right values that hold for no left record to come, except late ones."""
        right = versions.right
        if len(right) > 1:
            earliest = min([ctx.watermark, *(time for time, _ in versions.left[:1])])
            del right[: max(0, bisect_left(right, (earliest + 1,)) - 1)]


def _by_time_and_bytes(kept: tuple[int, Any]) -> tuple[int, bytes]:
    return kept[0], rank_bytes(kept[1])
