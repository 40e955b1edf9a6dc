"""Aggregation over tumbling and sliding windows (figure 9's Windower, made general)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from millwheel.core.time import LAST_TIMESTAMP, MAX_TIMESTAMP, Duration, Timestamp
from millwheel.sdk.computation import SAME_AS_INPUT, Computation
from millwheel.sdk.context import Context
from millwheel.sdk.errors import UsageError
from millwheel.sdk.model import Record, Timer
from millwheel.windows.aggregates import Aggregator, result_type_of
from millwheel.windows.assigners import Assigner, SessionWindows, Window
from millwheel.windows.result import Result

__all__ = ["Aggregate", "output_types", "result_time"]

A = TypeVar("A")

Panes = dict[tuple[int, int], tuple[int, A]]
"""By a window's start and end: the revision last produced (-1 until the first result is), and the accumulator."""

_NONE: Final = Duration(0)
_PURGE: Final = "purge/"
"""Begins the tags of the timers that end what is kept for late records."""


class Aggregate(Computation[Any, Panes[A]]):
    """One result per key and window, produced when the low watermark has passed the window's end.

    Late records whose windows are still open count like any other. For those that come after their window's
    result, ``allowed_lateness`` says how long windows are kept for them: each then produces a corrected Result
    with the next revision and the window's end as timestamp. A record that none of its windows is kept for is
    produced, as it came, to ``too_late`` if that stream is named, else dropped. To keep all late records out, set
    ``late=`` where the computation is added.

    It declares its outputs: ``output`` carries ``Result[R]``, where ``R`` is the type of the aggregator's results, and
    ``too_late`` the type of the inputs. ``outputs=`` may be left out where the computation is added.

    Args:
        windows: Which windows a timestamp is in.
        aggregator: How a window's records become one value.
        output: The stream that results are produced to.
        allowed_lateness: Microseconds of event time for which a window is kept after its end.
        too_late: The stream that records are produced to for which no window is kept any more.

    Raises:
        UsageError: If ``windows`` are session windows, the aggregator does not state the type of its results, or
            both streams have the same name.
    """

    def __init__(
        self,
        windows: Assigner,
        aggregator: Aggregator[A, Any],
        *,
        output: str = "windows",
        allowed_lateness: Duration = _NONE,
        too_late: str | None = None,
    ) -> None:
        if isinstance(windows, SessionWindows):
            raise UsageError("session windows need SessionAggregate: their bounds depend on the records")
        if allowed_lateness < 0:
            raise UsageError(f"allowed_lateness must not be negative, not {allowed_lateness} microseconds")
        self.windows = windows
        self.aggregator = aggregator
        self.output = output
        self.allowed_lateness = allowed_lateness
        self.too_late = too_late
        self.outputs = output_types(aggregator, output, too_late)
        # What fills A, for the type of the state.
        self.__orig_class__ = Aggregate[aggregator.accumulator]  # type: ignore[name-defined]
        self._add = aggregator.add
        self._new = aggregator.new
        self._windows_of = windows.windows_of

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return self.outputs

    def process_record(self, ctx: Context[Panes[A]], record: Record[Any]) -> None:
        """Add the record to its windows, and set a timer for the end of each new one."""
        panes = ctx.state
        taken = False
        for window in self._windows_of(record.timestamp):
            pane = panes.get(window)
            if pane is not None:
                taken = True
                revision, accumulator = pane
                panes[window] = revision, self._add(accumulator, record)
                if revision >= 0:
                    self._produce(ctx, window)
            elif window.end > ctx.watermark:
                taken = True
                panes[window.bounds] = -1, self._add(self._new(), record)
                ctx.set_timer(Timestamp(window.end), window.tag)
            elif self._is_kept(ctx, window):
                taken = True
                self._open_late(ctx, record, window)
        if not taken:
            self._drop(ctx, record)

    def process_timer(self, ctx: Context[Panes[A]], timer: Timer) -> None:
        """The low watermark has passed a window's end (or what is allowed beyond it)."""
        window = Window.from_tag(timer.tag.removeprefix(_PURGE))
        if timer.tag.startswith(_PURGE):
            ctx.state.pop(window, None)
        else:
            self._produce(ctx, window)
            if self.allowed_lateness:
                ctx.set_timer(self._purge_at(window), _PURGE + timer.tag)
            else:
                del ctx.state[window]
        if not ctx.state:
            del ctx.state

    def _purge_at(self, window: Window) -> Timestamp:
        return Timestamp(min(window.end + self.allowed_lateness, MAX_TIMESTAMP))

    def _is_kept(self, ctx: Context[Panes[A]], window: Window) -> bool:
        """Whether late records of an ended window still count."""
        return ctx.watermark < self._purge_at(window)

    def _open_late(self, ctx: Context[Panes[A]], record: Record[Any], window: Window) -> None:
        """The first record of a window that has ended, and is kept."""
        ctx.state[window.bounds] = -1, self._add(self._new(), record)
        self._produce(ctx, window)
        ctx.set_timer(self._purge_at(window), _PURGE + window.tag)

    def _drop(self, ctx: Context[Panes[A]], record: Record[Any]) -> None:
        """A record that comes when none of its windows is kept any more."""
        if not ctx.state:
            del ctx.state
        if self.too_late is not None:
            ctx.produce(self.too_late, record.value)

    def _produce(self, ctx: Context[Panes[A]], window: Window) -> None:
        before, accumulator = ctx.state[window]
        revision = before + 1
        ctx.state[window] = revision, accumulator
        value = self.aggregator.result(accumulator)
        result = Result(ctx.key, Timestamp(window.start), Timestamp(window.end), value, revision)
        ctx.produce(self.output, result, timestamp=result_time(window))


def result_time(window: Window) -> Timestamp:
    """The timestamp of a window's results: its end, or the last timestamp that a record can have."""
    return Timestamp(min(window.end, LAST_TIMESTAMP))


def output_types(aggregator: Aggregator[Any, Any], output: str, too_late: str | None) -> dict[str, Any]:
    """What a window computation produces: results to ``output``, and records that are too late as they came.

    UsageError as by :class:`Aggregate`.
    """
    if too_late == output:
        raise UsageError(f"output= and too_late= both name stream {output!r}: a stream has one type; use two streams")
    types: dict[str, Any] = {output: Result[result_type_of(aggregator)]}  # type: ignore[misc]
    if too_late is not None:
        types[too_late] = SAME_AS_INPUT
    return types
