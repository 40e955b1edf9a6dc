"""Aggregation over sessions: windows whose bounds depend on the records, and which can merge."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import reduce
from typing import Any, Final, TypeVar

from millwheel.agg.aggregator import Aggregator
from millwheel.model.time import MAX_TIMESTAMP, Duration, Timestamp
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.durations import check_duration
from millwheel.sdk.errors import UsageError
from millwheel.sdk.records import Record, Timer
from millwheel.windows.assigners import SessionWindows, Window
from millwheel.windows.computation import output_types, result_time
from millwheel.windows.result import Result, Row

__all__ = ["SessionAggregate"]

A = TypeVar("A")

Sessions = list[tuple[int, int, A, int]]
"""(start, end, accumulator, revision) of each session, by increasing start. Sessions do not overlap.

The revision is that of the last result, and -1 before the first one.
"""

_NONE: Final = Duration(0)
_PURGE: Final = "purge/"
"""The tag prefix of the timers that delete a session which is kept for late records."""


class SessionAggregate(Computation[Any, Sessions[A]]):
    """Produces one result for each key and session, when the low watermark has passed the session's end.

    A record belongs to the session that contains its timestamp. Otherwise it opens a session, which ends ``gap`` after
    the timestamp. If a record connects several sessions, they are merged.

    After its end, a session is kept for ``allowed_lateness``. A late record then extends it, or merges it with others.
    The result of what is made so replaces those of all sessions within it: its revision is larger than theirs. It is
    produced at once, or at the new end if the low watermark has not passed that. A late record for which no session is
    kept, and whose own would not be kept either, is produced unchanged to ``too_late``. If there is no such stream, it
    is counted and dropped.

    Invariant: a session that has not ended has a timer at its end, tagged with its start. One that has ended is kept
    until its timer of deletion. A form of the step with another ``allowed_lateness`` may have set this timer.

    The computation declares its outputs as :class:`Aggregate` does.

    Args:
        windows: The gap that ends a session, from ``windows.session(gap)``.
        aggregator: Computes one value from the records of a session.
        output: The stream of the results.
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
        allowed_lateness: Duration = _NONE,
        too_late: str | None = None,
        row: Row | None = None,
    ) -> None:
        if not isinstance(windows, SessionWindows):
            raise UsageError(
                f"SessionAggregate takes windows.session(gap), not {windows!r:.80}: use Aggregate for others"
            )
        check_duration("allowed_lateness", allowed_lateness, least=0)
        self.gap = windows.gap
        self.aggregator = aggregator
        self.output = output
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
        start, end = record.timestamp, min(record.timestamp + self.gap, MAX_TIMESTAMP)
        sessions, aggregator = ctx.state, self.aggregator
        # The sessions that begin before the end, and end after the start. A tuple of a time alone comes before all
        # sessions that begin then, so no accumulators are compared.
        low = high = bisect_left(sessions, (end,))
        while low and start < sessions[low - 1][1]:
            low -= 1
        joined = sessions[low:high]
        if joined:
            first, last = min(start, joined[0][0]), max(end, joined[-1][1])
            accumulator = reduce(aggregator.merge, [one[2] for one in joined])
            revision = max([one[3] for one in joined])
        elif self._kept_until(end) > ctx.watermark:
            first, last, accumulator, revision = start, end, aggregator.new(), -1
        else:
            self._drop(ctx, record)
            return
        sessions[low:high] = [(first, last, aggregator.add(accumulator, record), revision)]
        for begin, ended, _, before in joined:
            if begin != first:
                ctx.cancel_timer(str(begin))
            if before >= 0 or ended <= ctx.watermark:
                ctx.cancel_timer(_PURGE + str(begin))
        if last <= ctx.watermark and (revision >= 0 or not joined):
            ctx.cancel_timer(str(first))
            self._end(ctx, low)
        else:
            ctx.set_timer(Timestamp(last), str(first))

    def _kept_until(self, end: int) -> int:
        return min(end + self.allowed_lateness, MAX_TIMESTAMP)

    def _drop(self, ctx: Context[Sessions[A]], record: Record[Any]) -> None:
        """Handle a record for which no session is kept."""
        if not ctx.state:
            del ctx.state
        if self.too_late is not None:
            ctx.produce(self.too_late, record.value)
        else:
            ctx.count_dropped()

    def process_timer(self, ctx: Context[Sessions[A]], timer: Timer) -> None:
        """Produce the result of a session that has ended, or delete one that is no longer kept."""
        place = self._place(ctx, timer)
        if timer.tag.startswith(_PURGE):
            self._delete(ctx, place)
        else:
            self._end(ctx, place)

    def _given_up(self, ctx: Context[Sessions[A]], timer: Timer) -> None:
        """Treat the session as one whose result has been produced. A kept one has it with the next late record."""
        place = self._place(ctx, timer)
        if timer.tag.startswith(_PURGE):
            self._delete(ctx, place)
        else:
            self._keep(ctx, place)

    def _end(self, ctx: Context[Sessions[A]], place: int) -> None:
        """Produce the result of a session. Then keep the session for late records, or delete it."""
        start, end, accumulator, revision = ctx.state[place]
        ctx.state[place] = start, end, accumulator, revision + 1
        value = self.aggregator.result(accumulator)
        result = self._row(ctx.key, Timestamp(start), Timestamp(end), value, revision + 1)
        ctx.produce(self.output, result, timestamp=result_time(Window(start, end)))
        self._keep(ctx, place)

    def _keep(self, ctx: Context[Sessions[A]], place: int) -> None:
        start, end, _, _ = ctx.state[place]
        if (until := self._kept_until(end)) > ctx.watermark:
            ctx.set_timer(Timestamp(until), _PURGE + str(start))
        else:
            self._delete(ctx, place)

    def _delete(self, ctx: Context[Sessions[A]], place: int) -> None:
        del ctx.state[place]
        if not ctx.state:
            del ctx.state

    def _place(self, ctx: Context[Sessions[A]], timer: Timer) -> int:
        """The index of a timer's session."""
        return bisect_left(ctx.state, (int(timer.tag.removeprefix(_PURGE)),))
