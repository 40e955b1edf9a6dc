"""Aggregation over sessions: windows whose bounds depend on the records, and which can merge."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import reduce
from typing import Any, Final, TypeVar

from millwheel.agg.aggregator import Aggregator
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, TimeDomain, Timestamp
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.durations import check_duration
from millwheel.sdk.errors import UsageError
from millwheel.sdk.records import Record, Timer
from millwheel.windows.assigners import SessionWindows, Window
from millwheel.windows.computation import PURGE, output_types, result_time
from millwheel.windows.early import Early, check_early
from millwheel.windows.result import Result, Row

__all__ = ["SessionAggregate"]

A = TypeVar("A")

Sessions = list[tuple[int, int, A, int, int]]
"""(start, end, accumulator, revision, early_at) of each session, by increasing start. Sessions do not overlap.

The revision is that of the last result, and -1 before the first one. ``early_at`` is the time at which the timer of the
next early result is due; 0: none is set.
"""

_NO_LATENESS: Final = Duration(0)


class SessionAggregate(Computation[Any, Sessions[A]]):
    """Produces one result for each key and session, when the low watermark has passed the session's end.

    A record belongs to the session that contains its timestamp. Otherwise it opens a session, which ends ``gap`` after
    the timestamp. If a record connects several sessions, they are merged.

    After its end, a session is kept for ``allowed_lateness``. A late record then extends it, or merges it with others.
    The result of what is made so replaces those of all sessions within it: its revision is larger than theirs. It is
    produced at once, or at the new end if the low watermark has not passed that. A late record whose own session would
    not be kept any more counts only within a kept session: it opens none, and begins none earlier. Otherwise it is
    produced unchanged to ``too_late``. If there is no such stream, it is counted and dropped.

    With ``early=``, a session also produces results before its end, with all records so far. They have the end that the
    session has then, also as timestamp. Each is replaced in the same way: by a later one that contains it.

    Invariant: no session contains one that is not kept any more, whose result it would replace without its records. Who
    may break it: a late record that begins a session too early, or an update with a longer ``allowed_lateness``.

    Invariant: a session that has not ended has a timer at its end, tagged with its start. One that has ended is kept
    until its timer of deletion. A form of the step with another ``allowed_lateness`` may have set this timer.

    The computation declares its outputs as :class:`Aggregate` does.

    Args:
        windows: The gap that ends a session, from ``windows.session(gap)``.
        aggregator: Computes one value from the records of a session.
        output: The stream of the results.
        early: When results are produced before a session's end, as for :class:`Aggregate`.
        allowed_lateness: How long a session is kept after its end, in microseconds of event time.
        too_late: The stream of records whose session is not kept any more.
        row: What a result is. By default a Result.

    Raises:
        UsageError: ``windows`` are no session windows, ``allowed_lateness`` is negative or probably in another unit,
            the aggregator does not state the type of its results, or both streams have the same name.
    """

    def __init__(
        self,
        windows: SessionWindows,
        aggregator: Aggregator[A, Any],
        *,
        output: str = "sessions",
        early: Early | None = None,
        allowed_lateness: Duration = _NO_LATENESS,
        too_late: str | None = None,
        row: Row | None = None,
    ) -> None:
        if not isinstance(windows, SessionWindows):
            raise UsageError(
                f"SessionAggregate takes windows.session(gap), not {windows!r:.80}: use Aggregate for others"
            )
        check_duration("allowed_lateness", allowed_lateness, least=0)
        check_early(early)
        self.gap = windows.gap
        self.aggregator = aggregator
        self.output = output
        self.early = early
        self.allowed_lateness = allowed_lateness
        self.too_late = too_late
        self.outputs = output_types(aggregator, output, too_late, row)
        self._row = Result if row is None else row.make
        # The type argument for A. It defines the type of the state.
        self.__orig_class__ = SessionAggregate[aggregator.accumulator]  # type: ignore[name-defined]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return self.outputs

    def process_record(self, ctx: Context[Sessions[A]], record: Record[Any]) -> None:
        """Add the record to its session. Merge the sessions that the record connects."""
        end = min(record.timestamp + self.gap, MAX_TIMESTAMP)
        # A record that is not late joins no session that has ended.
        self._take(ctx, record, record.timestamp, end, ctx.watermark if record.late else MIN_TIMESTAMP)

    def _take(self, ctx: Context[Sessions[A]], record: Record[Any], start: int, end: int, watermark: int) -> None:
        """Add what is from ``start`` to ``end``. ``watermark``: no session that it joins has ended before."""
        sessions, aggregator = ctx.state, self.aggregator
        # The sessions that begin before the end, and end after the start. A tuple of a time alone comes before all
        # sessions that begin then, so no accumulators are compared.
        low = high = bisect_left(sessions, (end,))
        while low and start < sessions[low - 1][1]:
            low -= 1
        joined = sessions[low:high]
        if (not joined or start < joined[0][0]) and self._kept_until(end) <= watermark:
            self._drop(ctx, record)
            return
        if joined:
            first, last, accumulator, revision, early_at = joined[0] if high - low == 1 else self._merged(joined)
            # Then it has no timer but that of its end, which is set again.
            goes_on = high - low == 1 and first <= start and last > watermark and revision < 0 and not early_at
            first, last = min(start, first), max(end, last)
        else:
            first, last, accumulator, revision, early_at, goes_on = start, end, aggregator.new(), -1, 0, True
        sessions[low:high] = [(first, last, aggregator.add(accumulator, record), revision, 0)]
        if not goes_on:
            self._forget_timers(ctx, joined, first)
        if last <= watermark and (revision >= 0 or not joined):
            ctx.cancel_timer(str(first))
            self._end(ctx, low)
            return
        ctx.set_timer(Timestamp(last), str(first))
        if self.early is not None and last > watermark:
            self._announce(ctx, low, self.early, early_at)

    def _merged(self, joined: Sessions[A]) -> tuple[int, int, A, int, int]:
        """Several sessions as one."""
        accumulator = reduce(self.aggregator.merge, [one[2] for one in joined])
        due = [one[4] for one in joined if one[4]]
        return joined[0][0], joined[-1][1], accumulator, max([one[3] for one in joined]), min(due) if due else 0

    def _forget_timers(self, ctx: Context[Sessions[A]], joined: Sessions[A], first: int) -> None:
        """Cancel the timers of sessions that are joined, except one that is set again."""
        for begin, ended, _, revision, early_at in joined:
            if begin != first:
                ctx.cancel_timer(str(begin))
            if revision >= 0 or ended <= ctx.watermark:
                ctx.cancel_timer(PURGE + str(begin))
            if early_at:
                ctx.cancel_timer(str(begin), domain=TimeDomain.PROCESSING_TIME)

    def _announce(self, ctx: Context[Sessions[A]], place: int, early: Early, set_before: int) -> None:
        """Produce an early result, or set the timer for it. ``set_before``: when that of joined sessions was due."""
        if not early.period:
            self._produce(ctx, place)
            return
        start, end, accumulator, revision, _ = ctx.state[place]
        at = min(set_before or MAX_TIMESTAMP, ctx.now + early.period)
        ctx.state[place] = start, end, accumulator, revision, at
        hold = result_time(Window(start, end))
        ctx.set_timer(Timestamp(at), str(start), domain=TimeDomain.PROCESSING_TIME, hold=hold)

    def _kept_until(self, end: int) -> int:
        return min(end + self.allowed_lateness, MAX_TIMESTAMP)

    def _drop(self, ctx: Context[Sessions[A]], record: Record[Any]) -> None:
        """Handle a record for which no session is kept."""
        if self.too_late is not None:
            ctx.produce(self.too_late, record.value)
        else:
            ctx.count_dropped()

    def process_timer(self, ctx: Context[Sessions[A]], timer: Timer) -> None:
        """Produce the result of a session, early or at its end, or delete a session that is no longer kept."""
        place = self._place(ctx, timer)
        if timer.tag.startswith(PURGE):
            self._delete(ctx, place)
        elif timer.domain is TimeDomain.PROCESSING_TIME:
            self._produce(ctx, place)
        else:
            self._end(ctx, place)

    def _given_up(self, ctx: Context[Sessions[A]], timer: Timer) -> None:
        """Treat the session as one whose result has been produced. A kept one has it with the next late record."""
        place = self._place(ctx, timer)
        if timer.tag.startswith(PURGE):
            self._delete(ctx, place)
        elif timer.domain is TimeDomain.EVENT_TIME:
            self._keep(ctx, place)

    def _end(self, ctx: Context[Sessions[A]], place: int) -> None:
        """Produce the result of a session. Then keep the session for late records, or delete it."""
        self._produce(ctx, place)
        self._keep(ctx, place)

    def _produce(self, ctx: Context[Sessions[A]], place: int) -> None:
        start, end, accumulator, revision, early_at = ctx.state[place]
        ctx.state[place] = start, end, accumulator, revision + 1, 0
        if early_at:
            ctx.cancel_timer(str(start), domain=TimeDomain.PROCESSING_TIME)
        value = self.aggregator.result(accumulator)
        result = self._row(ctx.key, Timestamp(start), Timestamp(end), value, revision + 1)
        ctx.produce(self.output, result, timestamp=result_time(Window(start, end)))

    def _keep(self, ctx: Context[Sessions[A]], place: int) -> None:
        start, end, _, _, early_at = ctx.state[place]
        if early_at:  # the result of the end was given up
            ctx.cancel_timer(str(start), domain=TimeDomain.PROCESSING_TIME)
        if (until := self._kept_until(end)) > ctx.watermark:
            ctx.set_timer(Timestamp(until), PURGE + str(start))
        else:
            self._delete(ctx, place)

    def _delete(self, ctx: Context[Sessions[A]], place: int) -> None:
        del ctx.state[place]

    def _place(self, ctx: Context[Sessions[A]], timer: Timer) -> int:
        """The index of a timer's session."""
        return bisect_left(ctx.state, (int(timer.tag.removeprefix(PURGE)),))
