"""Sessions of keys with too many records for one machine, in two phases (section 8.4).

Sessions are divided by shard and by time. A *part* has the records of one shard in a short time, and reaches from the
first of them to the gap after the last. Two parts overlap if and only if two of their records are in one session. So
the second phase merges parts as :class:`SessionAggregate` merges sessions.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast

from millwheel.agg.aggregator import Aggregator, result_type_of
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from millwheel.sdk.context import Context
from millwheel.sdk.records import Record
from millwheel.windows.assigners import SessionWindows, Window, tumbling
from millwheel.windows.computation import Pane, Panes
from millwheel.windows.early import Early
from millwheel.windows.result import Result, Row
from millwheel.windows.sessions import SessionAggregate, Sessions
from millwheel.windows.two_phase import PartialAggregate

__all__ = ["MergeSessions", "SessionParts"]

A = TypeVar("A")
_NO_LATENESS: Final = Duration(0)
_PARTS: Final = 16
"""The parts of a gap. A part delays the results of other sessions for as long as it takes. Each costs a record."""


class SessionParts(PartialAggregate[Any]):
    """The first phase. Its results are accumulators, from the start of a part to the gap after its last record.

    A part that is not over holds the output watermark at its beginning, or where the low watermark was when its first
    record came. So the second phase has all records of a session when the low watermark is its end. A late record is a
    part of its own. It is too late if a session of it alone would not be kept.

    Args:
        windows: The gap that ends a session.
        aggregator: Computes one value from the records of a session.
        output: The stream of the parts.
        early: How long a part waits at most, in processing time.
        allowed_lateness: How long a session is kept after its end, in microseconds of event time.
        too_late: The stream of records whose session is not kept any more.
    """

    def __init__(
        self,
        windows: SessionWindows,
        aggregator: Aggregator[Any, Any],
        output: str,
        *,
        early: Early | None = None,
        allowed_lateness: Duration = _NO_LATENESS,
        too_late: str | None = None,
    ) -> None:
        pieces = tumbling(Duration(max(1, windows.gap // _PARTS)))
        part = Row(Result[aggregator.accumulator], Result)  # type: ignore[name-defined]
        super().__init__(
            pieces,
            _bounded(aggregator),
            output=output,
            early=early,
            allowed_lateness=allowed_lateness,
            too_late=too_late,
            row=part,
        )
        self.gap = windows.gap

    def _hold_of(self, ctx: Context[Panes[Any]], window: Window) -> Timestamp:
        # At or before each record to come that is not late. A hold behind the output watermark would have no effect.
        first = ctx.state[window].accumulator[0]
        return Timestamp(max(window.start, min(first, ctx.watermark)))

    def _is_kept(self, ctx: Context[Panes[Any]], window: Window, at: Timestamp) -> bool:
        return ctx.watermark < min(at + self.gap + self.allowed_lateness, MAX_TIMESTAMP)

    def _produce(self, ctx: Context[Panes[Any]], window: Window, pane: Pane[Any]) -> None:
        first, last, accumulator = pane.accumulator
        end = Timestamp(min(last + self.gap, MAX_TIMESTAMP))
        part = Result(ctx.key, Timestamp(first), end, accumulator)
        # A late record may be before the hold. The output watermark does not rise until the ACK.
        ctx.produce(self.output, part, timestamp=Timestamp(max(first, ctx._earliest)))
        self._forget(ctx, window, pane)


def _bounded(aggregator: Aggregator[Any, Any]) -> Aggregator[Any, Any]:
    """Aggregates with the first and the last timestamp."""
    add, merge, new = aggregator.add, aggregator.merge, aggregator.new

    def add_at(so_far: tuple[int, int, Any], record: Record[Any]) -> tuple[int, int, Any]:
        first, last, accumulator = so_far
        at = record.timestamp
        return min(first, at), max(last, at), add(accumulator, record)

    def merged(one: tuple[int, int, Any], other: tuple[int, int, Any]) -> tuple[int, int, Any]:
        return min(one[0], other[0]), max(one[1], other[1]), merge(one[2], other[2])

    kind: Any = tuple[int, int, aggregator.accumulator]  # type: ignore[name-defined]
    return Aggregator(kind, lambda: (MAX_TIMESTAMP, MIN_TIMESTAMP, new()), add_at, merged, lambda value: value, kind)


class MergeSessions(SessionAggregate[A]):
    """The second phase: it merges the parts of sessions. It keeps and revises sessions as :class:`SessionAggregate`.

    Args:
        windows: As for the first phase.
        aggregator: As for the first phase.
        output: The stream of the results.
        early: As for the first phase. A part of a result may have waited for this period in each phase.
        allowed_lateness: As for the first phase.
        row: What a result is. By default a Result.
    """

    def __init__(
        self,
        windows: SessionWindows,
        aggregator: Aggregator[A, Any],
        *,
        output: str,
        early: Early | None = None,
        allowed_lateness: Duration = _NO_LATENESS,
        row: Row | None = None,
    ) -> None:
        parts = _of_parts(aggregator, None if row is not None else result_type_of(aggregator))
        super().__init__(windows, parts, output=output, early=early, allowed_lateness=allowed_lateness, row=row)

    def process_record(self, ctx: Context[Sessions[A]], record: Record[Any]) -> None:
        """Merge a part into its session. Merge the sessions that the part connects."""
        part: Result[A] = record.value
        self._take(ctx, record, part.start, part.end, ctx.watermark)


def _of_parts(aggregator: Aggregator[A, Any], result_type: Any) -> Aggregator[A, Any]:
    """Aggregates accumulators. A session begins with the first of them, because an empty one may not be merged."""
    merge, nothing = aggregator.merge, cast("A", object())  # None may be an accumulator of the user's

    def add(so_far: A, record: Record[Any]) -> A:
        part: A = record.value.value
        return part if so_far is nothing else merge(so_far, part)

    return Aggregator(aggregator.accumulator, lambda: nothing, add, merge, aggregator.result, result_type)
