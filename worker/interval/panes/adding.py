"""Adding records to panes, many at a time, in place of a hook for each (sections 4.2, 6.1.1).

Invariant: a record has the effect that the hook would have. What only the hook can do is left to it: a record whose
window has ended, one that the computation's options treat as late, and one whose pane is in the state of its key. A
record that cannot be read fails as in a hook, and changes no pane.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from millwheel.model.time import TimeDomain
from millwheel.sdk.columns import ColumnWindows
from millwheel.sdk.declarations import DROPPED
from millwheel.sdk.options import LateAction
from millwheel.windows.assigners import window_tag
from millwheel.worker.interval.blocked_key_table import RecordItem
from millwheel.worker.interval.hooks.failures import HOOK_ERRORS
from millwheel.worker.interval.hooks.runner import Runner
from millwheel.worker.interval.intake import DeliveryReceipt
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column

__all__ = ["PaneAdder"]

_FAR: Final = 1 << 61
"""Timestamps beyond it, in both directions, are left to the hook: the bounds of their windows would overflow."""
_ENTRY_BYTES: Final = 8
"""Bytes of a changed row in an entry, for each of its columns, and for its number."""


class PaneAdder:
    """Runs queued records of a computation whose windows are kept by columns."""

    def __init__(self, state: IntervalState, windows: ColumnWindows, runner: Runner) -> None:
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._timers = state.timers
        self._blocked = state.blocked
        self._panes = state.panes
        self._windows = windows
        self._runner = runner

    def run_records(self, receipt: DeliveryReceipt, indexes: Sequence[int], alone: bool) -> tuple[int, int, int]:
        """Run records of one delivery.

        Returns:
            The number of records that are done with, of those that wait behind their blocked key, and of calls.
        """
        starts, fits = self._fitting(receipt, indexes, alone)
        waits = calls = 0
        others = [index for index, fit in zip(indexes, fits, strict=True) if not fit]
        if len(others) < len(indexes):
            chosen = [index for index, fit in zip(indexes, fits, strict=True) if fit] if others else indexes
            calls = self._add(receipt, chosen, starts[fits] if others else starts)
        while others:
            ran, waited, called = self._runner.run_hooks(receipt, others, alone)
            others, waits, calls = others[ran:], waits + waited, calls + called
        return len(indexes), waits, calls

    def _fitting(self, receipt: DeliveryReceipt, indexes: Sequence[int], alone: bool) -> tuple[Column, Column]:
        """The starts of the records' windows, and which records are added to panes."""
        import numpy as np

        delivery, windows, clocks = receipt.delivery, self._windows, self._clocks
        stamps = np.array(delivery.timestamps, np.int64)
        if len(indexes) != len(stamps):
            stamps = stamps[list(indexes)]
        starts = stamps - (stamps - windows.offset) % windows.size
        watermark: Any = clocks.watermark
        if clocks.bounded:
            watermark = np.array([clocks.watermark_of(delivery.keys[index]) for index in indexes], np.int64)
        fits = (starts + windows.size > watermark) & (stamps > -_FAR) & (stamps < _FAR)
        program = self._setup.program
        if program.options.late.action is not LateAction.PROCESS and delivery.stream not in program.never_late:
            fits &= stamps >= watermark
        blocked = () if alone else self._blocked.keys
        if blocked or self._runner.batch.contexts or len(self._timers.event_time) or self._timers.spilled.parts:
            for place, index in enumerate(indexes):
                key = delivery.keys[index]
                if key in blocked or self._in_state(key, int(starts[place])):
                    fits[place] = False
        return starts, fits

    def _in_state(self, key: bytes, start: int) -> bool:
        """Whether the pane of the key is in its state, or may be: a timer in the store may be that of the pane."""
        window = self._panes.windows.get(start)
        if window is not None and window.row_of(key) is not None:
            return False
        tag = window_tag(start, start + self._windows.size)
        if self._timers.event_time.get(key, tag) is not None or self._timers.spilled.parts:
            return True
        context = self._runner.batch.contexts.get(key)
        set_now = None if context is None or context._timers is None else context._timers
        return set_now is not None and set_now.get((TimeDomain.EVENT_TIME, tag)) is not None

    def _add(self, receipt: DeliveryReceipt, indexes: Sequence[int], starts: Column) -> int:
        """Add records to their panes. Those that cannot be read fail. Returns how many were added or failed."""
        import numpy as np

        fold, batch, delivery = self._windows.fold, self._runner.batch, receipt.delivery
        given: list[Column] = []
        if self._reads(delivery.stream):
            values, kept = self._values(receipt, indexes)
            if len(kept) < len(indexes):
                places = np.array(kept, np.int64)
                indexes, starts = [indexes[place] for place in kept], starts[places]
            if not indexes:
                return 0
            given = fold.read(values)
        keys = delivery.keys if len(indexes) == len(delivery.keys) else [delivery.keys[index] for index in indexes]
        first = int(starts[0])
        if (starts == first).all():
            self._add_to(first, keys, given)
        else:
            for start in np.unique(starts).tolist():
                rows = np.flatnonzero(starts == start)
                self._add_to(start, [keys[row] for row in rows.tolist()], [column[rows] for column in given])
        batch.added_of(receipt).extend(indexes)
        batch.size += len(indexes) * _ENTRY_BYTES * (1 + fold.width)
        return len(indexes)

    def _add_to(self, start: int, keys: Sequence[bytes], given: Sequence[Column]) -> None:
        windows, panes = self._windows, self._panes
        window = panes.window(start, start + windows.size, windows.fold.begin(0))
        panes.form = windows.fold.form
        known = len(window.keys)
        rows = window.rows_of(keys)
        windows.fold.add(window.now.columns, rows, given)
        self._runner.batch.size += sum(map(len, window.keys[known:]))

    def _reads(self, stream: str) -> bool:
        return self._windows.fold.reads or self._setup.program.one_reading[stream] is not None

    def _values(self, receipt: DeliveryReceipt, indexes: Sequence[int]) -> tuple[list[Any], list[int]]:
        """The values of the records that are added, and their places in ``indexes``.

        The others are dropped by a filter, and consumed. Or they cannot be read, or not be added.
        """
        delivery, program = receipt.delivery, self._setup.program
        read = program.one_reading[delivery.stream] or program.inputs[delivery.stream]
        encoded = [delivery.values[index] for index in indexes]
        try:
            values = list(map(read, encoded))
            if DROPPED not in values:
                self._windows.fold.read(values)
                return values, list(range(len(values)))
        except HOOK_ERRORS:
            pass  # each value is read by itself
        values, kept, dropped = [], [], []
        for place, index in enumerate(indexes):
            try:
                value = read(encoded[place])
                if value is not DROPPED:
                    self._windows.fold.read([value])
            except HOOK_ERRORS as error:
                self._runner.reading_failed(delivery.keys[index], RecordItem(receipt, index), error)
                continue
            if value is DROPPED:
                dropped.append(index)
            else:
                values.append(value)
                kept.append(place)
        self._runner.batch.added_of(receipt).extend(dropped)
        return values, kept
