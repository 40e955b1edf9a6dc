"""Moving panes to the states of their keys, where the hooks of the computation find them.

A pane in a state is what ``windows.Aggregate`` itself would make: an entry of its dict, and a timer at the window's
end. It is moved if its result cannot be made, and if the computation does not keep panes in such columns any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from millwheel.model.time import LAST_TIMESTAMP, Timestamp
from millwheel.windows.assigners import window_tag
from millwheel.worker.interval.hooks.runner import HookBatch, Runner
from millwheel.worker.interval.panes.table import PaneTable, WindowPanes
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column

__all__ = ["PaneMover", "encoded_panes", "give_back"]


class PaneMover:
    """Moves panes into contexts of the batch. They are moved once these are committed."""

    def __init__(self, state: IntervalState, runner: Runner) -> None:
        self._setup: IntervalSetup = state
        self._blocked = state.blocked
        self._panes = state.panes
        self._runner = runner

    def move(self, window: WindowPanes, row: int) -> bool:
        """Move one pane. Returns whether that was possible now: its key may wait for something."""
        key, batch = window.keys[row], self._runner.batch
        if key in self._blocked.keys:
            return False
        context = batch.contexts.get(key) or self._runner.open(key)
        if context is None:
            return False
        bounds, end = (window.start, window.end), min(window.end, LAST_TIMESTAMP)
        columns = [column[[row]] for column in window.now.columns]
        state = self._setup.program.state
        context._stamp = context._cause = context._earliest = end
        context.state[bounds] = state.decode(state.present(encoded_panes(self._panes.form, {bounds: columns})))[bounds]
        context.set_timer(Timestamp(end), window_tag(*bounds))
        window.now.move(row)
        batch.moved.append((window, row))
        self._panes.changed[window.start] = window
        return True

    def move_all(self) -> None:
        """Move panes whose columns are of another form than those of the computation, as far as the batch has room."""
        for window in list(self._panes.windows.values()):
            for row in window.now.waiting(len(window.keys)):
                if self._runner.full():
                    return
                self._runner.batch.records += self.move(window, row)
            if window.now.over:
                self._panes.end(window)


def give_back(panes: PaneTable, batch: HookBatch) -> None:
    """Take the panes back whose keys have failed since: their contexts are not part of the commit."""
    for window, row in batch.moved:
        context = batch.contexts.get(window.keys[row])
        if context is None or (window.start, window.end) not in (context._cell.value or ()):
            window.now.put_back(row)
            panes.reopen(window)


def encoded_panes(form: Any, panes: dict[tuple[int, int], Sequence[Column]]) -> bytes:
    """The state of a key with these panes, as ``windows.Aggregate`` encodes it.

    Args:
        form: What the columns are.
        panes: By start and end, the columns with the pane's row alone.
    """
    plain = {bounds: (-1, _plain_accumulators(form, list(columns))[0], 0) for bounds, columns in panes.items()}
    return msgspec.msgpack.encode(plain)


def _plain_accumulators(form: Any, columns: list[Column]) -> list[Any]:
    """Accumulators in plain types, encoded as those of the aggregators. It takes their columns from the list."""
    if isinstance(form, dict):
        fields = {name: _plain_accumulators(one, columns) for name, one in form.items()}
        return [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]
    first: list[Any] = columns.pop(0).tolist()
    if form.startswith("mean "):
        return list(zip(first, columns.pop(0).tolist(), strict=True))
    if form.startswith("extreme "):
        return [one if has else None for one, has in zip(first, columns.pop(0).tolist(), strict=True)]
    return first
