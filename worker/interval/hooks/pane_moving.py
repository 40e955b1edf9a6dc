"""Moving the panes of a key to its state, where the hooks of the computation find them (section 4.4; G1, G2).

A pane in a state is what ``windows.Aggregate`` itself would make: an entry of its dict, and a timer at the window's
end. All panes of a key move together, on demand: when a record of the key needs a hook that may touch them, or when a
result of the key cannot be made by columns. Then a large state takes them one by one. The move is an effect of the key
in the batch, like those of its hooks. It is undone with them (``BlockedKeys._undo``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from millwheel.model.limits import MAX_STATE_BYTES
from millwheel.model.time import LAST_TIMESTAMP, Timestamp
from millwheel.worker.interval.blocked_key_table import TimerItem, Wait
from millwheel.worker.interval.hooks.runner import Runner
from millwheel.worker.interval.panes.plain import encoded_panes
from millwheel.worker.interval.panes.table import PaneTable, WindowPanes
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState

__all__ = ["PaneMover", "undo_moves"]

MAX_MOVED_BYTES: Final = MAX_STATE_BYTES // 2
"""A state beyond it takes one pane at a time whose result must be made there. Else many could make it too large."""


class PaneMover:
    """Moves panes into contexts of the batch. They are moved once these are committed."""

    def __init__(self, state: IntervalState, runner: Runner) -> None:
        self._setup: IntervalSetup = state
        self._blocked = state.blocked
        self._cells = state.cells
        self._holds = state.holds
        self._panes = state.panes
        self._runner = runner
        self.asked: dict[bytes, TimerItem | None] = {}
        """Keys whose states are being read for a move, and perhaps some for which this is over. With each, what the
        pane stands for whose result cannot be made. None: a record of the key needs a hook."""

    def move(self, key: bytes, unmade: WindowPanes | None = None) -> bool:
        """Move all panes of the key. Returns False if its state must be read before: then the key is blocked.

        ``unmade``: the window in which its result cannot be made. None: a record of the key needs a hook. A large state
        takes the pane in that window alone.

        Raises:
            Exception: The state cannot be decoded. Nothing has moved.
        """
        runner, batch = self._runner, self._runner.batch
        opened = batch.contexts.get(key)
        context = opened or runner.open(key)
        if context is None:
            self.asked[key] = None if unmade is None else unmade.timer
            return False
        try:
            state = context.state
            moving = self._panes.of_key(key) if unmade is None or self._has_room(key) else [unmade]
            found = [(window, self._pane(window, key)) for window in moving]
        except BaseException:
            if opened is None:
                del batch.contexts[key]  # it has no effect, so it is no work
            raise
        for window, pane in found:
            bounds, end = (window.start, window.end), min(window.end, LAST_TIMESTAMP)
            assert bounds not in state, "a pane is in the table or in its key's state, and never in both"
            state[bounds] = pane
            context._stamp = context._cause = context._earliest = end
            context.set_timer(Timestamp(end), window.timer[2])
            window.close([key])
            self._panes.note_change(window)
            batch.moved.setdefault(key, []).append(window)
            # Its timer holds the output watermark from the seal on. Until then the batch does (G7).
            batch.hold = self._holds.covering(batch.hold, window.end)
        return True

    def _pane(self, window: WindowPanes, key: bytes) -> Any:
        """The key's pane as its hooks have it."""
        bounds, codec = (window.start, window.end), self._setup.program.state
        columns = window.present([key], self._panes.fold)
        return codec.decode(codec.present(encoded_panes(window.form, {bounds: columns})))[bounds]

    def _has_room(self, key: bytes) -> bool:
        """Whether the key's state, if it is in memory, has room for all panes of the key."""
        cell = self._cells.peek(key)
        return cell is None or len(cell.encoded) <= MAX_MOVED_BYTES

    @property
    def asks_much(self) -> bool:
        """Whether no more states may be asked for now: so many keys wait for theirs as fit into a batch (G13)."""
        if self.asked:
            keys = self._blocked.keys
            waiting = (key for key in self.asked if key in keys and keys[key].wait is Wait.STATE)
            self.asked = {key: self.asked[key] for key in waiting}
        return len(self.asked) >= self._setup.settings.batch_records


def undo_moves(panes: PaneTable, key: bytes, windows: Sequence[WindowPanes]) -> None:
    """The key's panes are in these windows again: what the batch did for the key is undone."""
    for window in windows:
        window.reopen(key)
        panes.note_change(window)
