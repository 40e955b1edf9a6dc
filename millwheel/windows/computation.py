"""Aggregation over tumbling and sliding windows, a general form of figure 9's Windower."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, Final, Generic, TypeVar

import msgspec

from millwheel.agg.aggregator import Aggregator, result_type_of
from millwheel.agg.numbers import one_more
from millwheel.agg.reading import same
from millwheel.model.time import LAST_TIMESTAMP, MAX_TIMESTAMP, Duration, TimeDomain, TimeInt, Timestamp
from millwheel.sdk.columns import ColumnWindows
from millwheel.sdk.computation import SAME_AS_INPUT, Computation
from millwheel.sdk.context import Context
from millwheel.sdk.durations import check_duration
from millwheel.sdk.errors import UsageError
from millwheel.sdk.records import Record, Timer
from millwheel.windows.assigners import Assigner, SessionWindows, Window, tumbling_size
from millwheel.windows.early import Early, check_early
from millwheel.windows.packed_results import packer_of
from millwheel.windows.result import Result, Row, encoder_of

__all__ = [
    "PURGE",
    "Aggregate",
    "Pane",
    "Panes",
    "drop_record",
    "output_types",
    "purge_time",
    "result_time",
]

A = TypeVar("A")


class Pane(msgspec.Struct, Generic[A], array_like=True):
    """The data of one window of a key. It is changed in place, because a new object for each record would be slower."""

    revision: int
    """The revision of the last result; -1 before the first result."""
    accumulator: A
    early_at: int = 0
    """When the timer of the next early result is due; 0: none is set. Invariant: none is after the window's end."""


Panes = dict[tuple[TimeInt, TimeInt], Pane[A]]
"""By a window's start and end, in microseconds."""

_NO_LATENESS: Final = Duration(0)
PURGE: Final = "purge/"
"""The tag prefix of the timers that delete a window which is kept for late records."""


class Aggregate(Computation[Any, Panes[A]]):
    """Produces one result for each key and window, when the low watermark has passed the window's end.

    A late record whose window is still open counts like any other. After its end, a window is kept for
    ``allowed_lateness``. A record that arrives in that time produces a corrected Result, with the next revision and the
    window's end as timestamp. A record for which no window is kept is produced unchanged to ``too_late``. If there is
    no such stream, it is counted and dropped. To exclude all late records, set ``late=`` in ``Topology.add``.

    The computation declares its outputs, so ``outputs=`` is optional in ``Topology.add``. ``output`` carries
    ``Result[R]``, where ``R`` is the type of the aggregator's results. ``too_late`` carries the type of the inputs.

    With ``early=``, a window also produces results before its end. Results accumulate, as with Beam's
    ``ACCUMULATING_FIRED_PANES``: each has all records so far, the next revision, and the window's end as timestamp. The
    result at the end is always produced. So the result with the largest revision replaces the others.

    Args:
        windows: Assigns timestamps to windows.
        aggregator: Computes one value from the records of a window.
        output: The stream of the results.
        early: When results are produced before a window's end: ``windows.every(mw.seconds(10))`` of processing time, or
            ``windows.each_change()``. By default there are none.
        allowed_lateness: How long a window is kept after its end, in microseconds of event time.
        too_late: The stream of records for which no window is kept.
        row: What a result is. By default a Result.

    Raises:
        UsageError: ``windows`` are session windows, ``allowed_lateness`` is negative or probably in another unit, the
            aggregator does not state the type of its results, or both streams have the same name.
    """

    def __init__(
        self,
        windows: Assigner,
        aggregator: Aggregator[A, Any],
        *,
        output: str = "windows",
        early: Early | None = None,
        allowed_lateness: Duration = _NO_LATENESS,
        too_late: str | None = None,
        row: Row | None = None,
    ) -> None:
        if isinstance(windows, SessionWindows):
            raise UsageError("session windows need SessionAggregate: their bounds depend on the records")
        check_duration("allowed_lateness", allowed_lateness, least=0)
        check_early(early)
        self.windows = windows
        self.aggregator = aggregator
        self.output = output
        self.early = early
        self.allowed_lateness = allowed_lateness
        self.too_late = too_late
        self.outputs = output_types(aggregator, output, too_late, row)
        self._row: Callable[[str, Any, Any, Any, int], Any] = Result if row is None else row.make
        # The type argument for A. It defines the type of the state.
        self.__orig_class__ = Aggregate[aggregator.accumulator]  # type: ignore[name-defined]
        self._add = aggregator.add
        self._counts = aggregator.add is one_more  # the most frequent one, without a call for each window
        self._new = aggregator.new
        self._result = aggregator.result
        self._windows_of = windows.windows_of

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return self.outputs

    def _why_not_by_columns(self) -> str:
        if type(self) is not Aggregate:
            return "its windows are spread over several computations"
        if tumbling_size(self.windows) is None:
            return "its windows are not tumbling, or have a time zone"
        if self.early or self.allowed_lateness:
            return "early= or allowed_lateness= needs each record"
        if self.aggregator._fold is None:
            names = ", ".join(map(repr, self.aggregator._without_fold))
            return f"an aggregate has no columns, or is of no int or float{names and f': {names}'}"
        return ""

    def _by_columns(self) -> ColumnWindows | None:
        size, fold = tumbling_size(self.windows), self.aggregator._fold
        if size is None or fold is None or self._why_not_by_columns():
            return None

        row, result = self._row, self._result

        def make(keys: Sequence[str], start: Timestamp, end: Timestamp, accumulators: Sequence[Any]) -> list[Any]:
            values = accumulators if result is same else map(result, accumulators)
            return list(map(row, keys, repeat(start), repeat(end), values, repeat(0)))

        kind = self.outputs[self.output]
        found = ColumnWindows(*size, fold, make, self.output, result_type=kind)
        if row is not Result:
            return found
        of = result_type_of(self.aggregator), result
        return replace(found, encode_columns=encoder_of(*of), pack_columns=packer_of(*of))

    def process_record(self, ctx: Context[Panes[A]], record: Record[Any]) -> None:
        """Add the record to its windows, and set a timer for the end of each new window."""
        panes, early, add, counts = ctx.state, self.early, self._add, self._counts
        revises = early is not None or record.late
        taken = False
        for window in self._windows_of(record.timestamp):
            pane: Pane[Any] | None = panes.get(window)
            if pane is not None:
                taken = True
                pane.accumulator = pane.accumulator + 1 if counts else add(pane.accumulator, record)
                if revises:
                    self._revise(ctx, window, pane)
            elif window.end > ctx.watermark:
                taken = True
                pane = panes[window.bounds] = Pane(-1, add(self._new(), record))
                self._set_end_timer(ctx, window)
                if early is not None:
                    self._revise(ctx, window, pane)
            elif self._is_kept(ctx, window, record.timestamp):
                taken = True
                self._open_late(ctx, window, add(self._new(), record))
        if not taken:
            drop_record(ctx, record, self.too_late)

    def process_timer(self, ctx: Context[Panes[A]], timer: Timer) -> None:
        """Produce the result of a window, early or at its end, or delete a window that is no longer kept."""
        panes = ctx.state
        if timer.tag.startswith(PURGE):
            self._purge(ctx, Window.from_tag(timer.tag.removeprefix(PURGE)))
        else:
            window = Window.from_tag(timer.tag)
            pane = panes[window]
            if timer.domain is TimeDomain.EVENT_TIME:
                self._produce(ctx, window, pane)
                self._end(ctx, window)
            else:
                pane.early_at = 0
                self._produce_early(ctx, window, pane)

    def _given_up(self, ctx: Context[Panes[A]], timer: Timer) -> None:
        """Treat the window as one whose result has been produced. A kept one has it with the next late record."""
        if timer.domain is TimeDomain.EVENT_TIME and not timer.tag.startswith(PURGE):
            window = Window.from_tag(timer.tag)
            if window in ctx.state:
                self._end(ctx, window)

    def _end(self, ctx: Context[Panes[A]], window: Window) -> None:
        """Delete a window that has ended, or keep it for late records."""
        pane = ctx.state[window]
        if pane.early_at:
            pane.early_at = 0
            ctx.cancel_timer(window.tag, domain=TimeDomain.PROCESSING_TIME)
        if self.allowed_lateness:
            ctx.set_timer(self._purge_at(window), PURGE + window.tag)
        else:
            del ctx.state[window]

    def _purge(self, ctx: Context[Panes[A]], window: Window) -> None:
        """Delete a window. Its end, if that was given up, has left the timer of an early result."""
        pane = ctx.state.pop(window, None)
        if pane is not None and pane.early_at:
            ctx.cancel_timer(window.tag, domain=TimeDomain.PROCESSING_TIME)

    def _revise(self, ctx: Context[Panes[A]], window: Window, pane: Pane[A]) -> None:
        """Handle a change of a window that has early results, or of one that may have ended.

        The policy ``dead_letter`` may have given up the timer of a window that is kept. A timer that is set again here
        fires at once then. If it was not given up, it is replaced by an equal one.
        """
        if window.end <= ctx.watermark:
            if pane.revision < 0 or not self.allowed_lateness:
                self._set_end_timer(ctx, window)
            else:
                self._produce(ctx, window, pane)
                ctx.set_timer(self._purge_at(window), PURGE + window.tag)
        elif self.early is None:
            pass  # A late record, and the window is still open.
        elif not self.early.period:
            self._produce(ctx, window, pane)
        elif not pane.early_at or pane.early_at <= ctx.now:
            pane.early_at = pane.early_at or ctx.now + self.early.period
            at = Timestamp(pane.early_at)
            ctx.set_timer(at, window.tag, domain=TimeDomain.PROCESSING_TIME, hold=self._hold_of(ctx, window))

    def _set_end_timer(self, ctx: Context[Panes[A]], window: Window) -> None:
        ctx.set_timer(Timestamp(window.end), window.tag)

    def _time_of(self, window: Window) -> Timestamp:
        return result_time(window)

    def _hold_of(self, ctx: Context[Panes[A]], window: Window) -> Timestamp:
        """Where an early result that is to come holds the output watermark."""
        return self._time_of(window)

    def _purge_at(self, window: Window) -> Timestamp:
        return purge_time(window, self.allowed_lateness)

    def _is_kept(self, ctx: Context[Panes[A]], window: Window, at: Timestamp) -> bool:
        """Whether a window that has ended still accepts a late record of timestamp ``at``."""
        return ctx.watermark < self._purge_at(window)

    def _open_late(self, ctx: Context[Panes[A]], window: Window, accumulator: A) -> None:
        """Handle the first record of a window that has ended and is still kept."""
        pane = ctx.state[window.bounds] = Pane(-1, accumulator)
        self._produce(ctx, window, pane)
        ctx.set_timer(self._purge_at(window), PURGE + window.tag)

    def _produce_early(self, ctx: Context[Panes[A]], window: Window, pane: Pane[A]) -> None:
        self._produce(ctx, window, pane)

    def _produce(self, ctx: Context[Panes[A]], window: Window, pane: Pane[A]) -> None:
        pane.revision += 1
        result = self._row(ctx.key, window.start, window.end, self._result(pane.accumulator), pane.revision)
        ctx.produce(self.output, result, timestamp=self._time_of(window))


def result_time(window: Window) -> Timestamp:
    """The timestamp of a window's results: its end, but at most LAST_TIMESTAMP."""
    return LAST_TIMESTAMP if window.end > LAST_TIMESTAMP else Timestamp(window.end)


def purge_time(window: Window, allowed_lateness: int) -> Timestamp:
    """When a window that has ended is deleted."""
    return Timestamp(min(window.end + allowed_lateness, MAX_TIMESTAMP))


def drop_record(ctx: Context[Any], record: Record[Any], too_late: str | None) -> None:
    """Handle a record for which no window is kept. ``too_late``: the stream of such records, if there is one."""
    if too_late is not None:
        ctx.produce(too_late, record.value)
    elif record.late:  # otherwise it is in no window by the assigner's choice
        ctx.count_dropped()


def output_types(
    aggregator: Aggregator[Any, Any], output: str, too_late: str | None, row: Row | None = None
) -> dict[str, Any]:
    """The outputs of a window computation: results to ``output``, and unchanged late records to ``too_late``.

    Raises:
        UsageError: As by :class:`Aggregate`.
    """
    if too_late == output:
        raise UsageError(f"output= and too_late= both name stream {output!r}: a stream has one type; use two streams")
    result: Any = Result[result_type_of(aggregator)] if row is None else row.type  # type: ignore[misc]
    types: dict[str, Any] = {output: result}
    if too_late is not None:
        types[too_late] = SAME_AS_INPUT
    return types
