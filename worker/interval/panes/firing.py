"""Producing the results of panes whose windows have ended (sections 4.6; G5, G6).

A pane whose result cannot be made is moved to the state of its key, with a timer. Then its hook fails, and the failure
policy decides, as for any computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millwheel.model.time import LAST_TIMESTAMP, Timestamp
from millwheel.sdk.columns import ColumnWindows
from millwheel.sdk.context import Context
from millwheel.worker.interval.cache.cells import KeyCell
from millwheel.worker.interval.hooks.failures import HOOK_ERRORS
from millwheel.worker.interval.hooks.runner import Runner
from millwheel.worker.interval.panes.moving import PaneMover
from millwheel.worker.interval.panes.table import WindowPanes
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState

__all__ = ["PaneFiring"]


class PaneFiring:
    """Produces results into the runner's batch."""

    def __init__(self, state: IntervalState, windows: ColumnWindows, runner: Runner, mover: PaneMover) -> None:
        self._setup: IntervalSetup = state
        self._holds = state.holds
        self._panes = state.panes
        self._windows = windows
        self._runner = runner
        self._mover = mover

    def run_due(self, upto: int) -> None:
        """Produce the results of the windows that end by ``upto``, the first window first, while the batch has room."""
        runner, meter = self._runner, self._setup.meter
        for start in sorted(self._panes.windows):
            window = self._panes.windows[start]
            if window.end > upto:
                return
            while not (window.now.over or runner.full()):
                runner.batch.hold = self._holds.covering(runner.batch.hold, window.end)
                began = meter.clock()
                rows = window.now.waiting(runner.room(meter.timers))
                kept = self._produce(window, rows)
                window.now.done(rows, kept)
                self._panes.changed[start] = window
                runner.batch.records += len(rows)
                runner.measure("process_timer", meter.timers, len(rows), began, None)
                if kept:
                    # Their keys wait for another event: for a row, or for another attempt of a record.
                    break
            if window.now.over:
                self._panes.end(window)
            elif runner.full():
                return

    def _produce(self, window: WindowPanes, rows: Sequence[int]) -> list[int]:
        """Produce results. Returns the rows that have to wait."""
        windows, results, kept = self._windows, self._runner.batch.results, list[int]()
        accumulators = windows.fold.accumulators([column[rows] for column in window.now.columns])
        for row, accumulator in zip(rows, accumulators, strict=True):
            key = window.keys[row]
            context: Context[Any] = Context(key, KeyCell(), self._setup.scope)
            context._stamp = context._cause = context._earliest = min(window.end, LAST_TIMESTAMP)
            try:
                value = windows.make(context.key, window.start, window.end, accumulator, 0)
                context.produce(windows.output, value, timestamp=Timestamp(context._stamp))
            except HOOK_ERRORS:
                self._setup.scope.produced_bytes -= context._produced
                if not self._mover.move(window, row):
                    kept.append(row)
                continue
            assert context._productions is not None, "a result is one production at least"
            results.append((key, context._productions))
        return kept
