"""Aggregation over sessions: windows whose bounds depend on the records, and which can merge."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import reduce
from typing import Any, TypeVar

from millwheel.agg.aggregator import Aggregator
from millwheel.model.time import MAX_TIMESTAMP, Timestamp
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.errors import UsageError
from millwheel.sdk.records import Record, Timer
from millwheel.windows.assigners import SessionWindows, Window
from millwheel.windows.computation import output_types, result_time
from millwheel.windows.result import Result, Row

__all__ = ["SessionAggregate"]

A = TypeVar("A")

Sessions = list[tuple[int, int, A]]
"""(start, end, accumulator) of each session, by increasing start. Sessions do not overlap."""


class SessionAggregate(Computation[Any, Sessions[A]]):
    """Produces one result for each key and session, when the low watermark has passed the session's end.

    A record belongs to the session that contains its timestamp. Otherwise it opens a session, which ends ``gap`` after
    the timestamp. If a record connects several sessions, they are merged. A late record whose session would have ended
    already is produced unchanged to ``too_late``. If there is no such stream, it is counted and dropped.

    The computation declares its outputs as :class:`Aggregate` does.

    Args:
        windows: The gap that ends a session, from ``windows.session(gap)``.
        aggregator: Computes one value from the records of a session.
        output: The stream of the results.
        too_late: The stream of records whose session would have ended already.
        row: What a result is. By default a Result.

    Raises:
        UsageError: ``windows`` are no session windows, the aggregator does not state the type of its results, or both
            streams have the same name.
    """

    def __init__(
        self,
        windows: SessionWindows,
        aggregator: Aggregator[A, Any],
        *,
        output: str = "sessions",
        too_late: str | None = None,
        row: Row | None = None,
    ) -> None:
        if not isinstance(windows, SessionWindows):
            raise UsageError(
                f"SessionAggregate takes windows.session(gap), not {windows!r:.80}: use Aggregate for others"
            )
        self.gap = windows.gap
        self.aggregator = aggregator
        self.output = output
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
            accumulator = reduce(aggregator.merge, [accumulator for _, _, accumulator in joined])
        elif end > ctx.watermark:
            first, last, accumulator = start, end, aggregator.new()
        else:
            self._drop(ctx, record)
            return
        for begin, _, _ in joined:
            if begin != first:
                ctx.cancel_timer(str(begin))
        sessions[low:high] = [(first, last, aggregator.add(accumulator, record))]
        ctx.set_timer(Timestamp(last), str(first))

    def _drop(self, ctx: Context[Sessions[A]], record: Record[Any]) -> None:
        """Handle a record whose session would have ended already."""
        if self.too_late is not None:
            ctx.produce(self.too_late, record.value)
        else:
            ctx.count_dropped()

    def process_timer(self, ctx: Context[Sessions[A]], timer: Timer) -> None:
        """Produce the result of a session that has ended."""
        start, end, accumulator = self._take(ctx, timer)
        value = self.aggregator.result(accumulator)
        result = self._row(ctx.key, Timestamp(start), Timestamp(end), value, 0)
        ctx.produce(self.output, result, timestamp=result_time(Window(start, end)))

    def _given_up(self, ctx: Context[Sessions[A]], timer: Timer) -> None:
        self._take(ctx, timer)

    def _take(self, ctx: Context[Sessions[A]], timer: Timer) -> tuple[int, int, A]:
        """Remove and return the session of a timer."""
        sessions = ctx.state
        return sessions.pop(bisect_left(sessions, (int(timer.tag),)))
