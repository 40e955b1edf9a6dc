"""Producing the results of panes whose windows have ended (sections 4.6; G5, G6).

A pane whose result cannot be made moves to the state of its key, with its timer. Then its hook fails, and the failure
policy decides, as for any computation. So do panes in columns of another form than the computation's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from millwheel.model.time import TimeDomain
from millwheel.worker.interval.blocked_key_table import Item, RecordItem, Wait
from millwheel.worker.interval.hooks.failures import HOOK_ERRORS
from millwheel.worker.interval.hooks.pane_moving import PaneMover
from millwheel.worker.interval.hooks.pane_results import ResultMaker
from millwheel.worker.interval.hooks.runner import HookOutcomes, Runner
from millwheel.worker.interval.panes.table import WindowPanes
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState

__all__ = ["PaneFiring"]

_AT_ONCE: Final = 256
"""So many results are made before the size of a result is known."""
_MOST_AT_ONCE: Final = 4_096
"""The most results that are made before their bytes are counted. They take about a millisecond (G8)."""
_FEWEST_AT_ONCE: Final = 16
"""The fewest. Where fewer have room in the batch, each is made by itself."""


class PaneFiring:
    """Produces results into the runner's batch.

    Invariant (G5): after ``produce``, unless the batch is full or the mover asks for much, each key that still has a
    pane in the window is blocked. So no record of the key runs before. A key that is blocked already keeps its pane,
    and its result is made before its next record or timer runs (``first_due``). A key with a context in the batch is
    blocked: what its hooks did is committed first.
    """

    def __init__(self, state: IntervalState, runner: Runner, outcomes: HookOutcomes) -> None:
        self._setup: IntervalSetup = state
        self._blocked = state.blocked
        self._holds = state.holds
        self._panes = state.panes
        self._timers = state.timers
        self._windows = state.column_windows
        self._runner = runner
        self._outcomes = outcomes
        self.mover = PaneMover(state, runner)

    def due(self, upto: int) -> list[WindowPanes]:
        """The windows that have panes to produce and end by ``upto``, in the order of their ends.

        Windows are passed over in which all keys were blocked, until a key is unblocked (G8: the others go on).
        """
        unblocked = self._blocked.unblocked
        return [window for window in self._panes.due(upto) if window.passed != unblocked]

    def first_due(self, key: bytes, item: Item | None) -> WindowPanes | None:
        """The window with the first pane of a blocked key that is due before its next record or timer (G5).

        ``item``: the record or timer. None: there is none.
        """
        if not self._panes.windows:
            return None
        upto = self._timers.due_until(TimeDomain.EVENT_TIME, key)
        if item is not None and not isinstance(item, RecordItem) and item[1] is TimeDomain.EVENT_TIME:
            upto = min(upto, item[0])
        return next(iter(self._panes.of_key(key, upto)), None)

    def of_timer(self, key: bytes, item: Item) -> WindowPanes | None:
        """The window with the pane that stands for this timer of the key. None: it is no timer of a pane here."""
        return next((window for window in self._panes.of_key(key) if window.timer == item), None)

    def produce(self, window: WindowPanes) -> None:
        """Produce the results of a window that has ended, while the batch has room."""
        runner, meter, waiting = self._runner, self._setup.meter, 0
        while not runner.full() and not self.mover.asks_much:
            # No more than that: what has no room in the batch would be looked up, and not made.
            keys = window.first_keys(waiting, min(runner.room(meter.timers), _MOST_AT_ONCE))
            if not keys:
                window.passed = self._blocked.unblocked
                return
            before = window.count
            self.produce_of(window, keys)
            waiting += len(keys) - (before - window.count)

    def produce_of(self, window: WindowPanes, keys: Sequence[bytes]) -> None:
        """Produce the results of some keys that have panes in a window that has ended, until the batch is full."""
        usual = not self._blocked.keys and not self._runner.batch.contexts
        free = keys if usual else [key for key in keys if self._may_fire(key)]
        if free:
            self._produce_free(window, free)

    def produce_blocked(self, window: WindowPanes, key: bytes) -> None:
        """Produce the result of a blocked key that is ready, before its next record or timer."""
        if key not in self._runner.batch.contexts:
            self._produce_free(window, [key])

    def _produce_free(self, window: WindowPanes, free: Sequence[bytes]) -> None:
        runner, meter = self._runner, self._setup.meter
        began, made = meter.clock(), 0
        runner.batch.hold = self._holds.covering(runner.batch.hold, window.end)
        self._panes.note_change(window)
        if self._windows is None or window.form != self._panes.form:
            for key in free:
                made += 1
                self._move(window, key)
                if runner.batch_full():
                    break
        else:
            made = self._produce_results(window, free)
        runner.batch.records += made
        runner.measure("process_timer", meter.timers, made, began, None)

    def _may_fire(self, key: bytes) -> bool:
        if key in self._blocked.keys:
            return False
        if key in self._runner.batch.contexts:
            self._blocked.block(key, Wait.READY)
            return False
        return True

    def _produce_results(self, window: WindowPanes, free: Sequence[bytes]) -> int:
        """Produce the results of these keys, until the batch is full. Returns how many of them are done with.

        A result has the size and the effect of one that a hook produces. There is no context for each of them, because
        a window may have a hundred thousand.
        """
        windows, runner, scope = self._windows, self._runner, self._setup.scope
        assert windows is not None, "results are made of the present form"
        accumulators = windows.fold.accumulators(window.present(free, self._panes.fold))
        maker = ResultMaker(self._setup, windows, window)
        closed, done, most = list[bytes](), 0, _AT_ONCE
        failed = 0  # a larger attempt up to here has failed: to try so many again would fail again (G8)
        while done < len(free):
            keys, part = free[done : done + most], accumulators[done : done + most]
            before, room = scope.produced_bytes, runner.budget() - scope.produced_bytes
            if (made := maker.together(keys, part, room)) is not None:
                runner.batch.results.append(made)
                closed += keys
                done += len(keys)
                size = scope.produced_bytes - before
                most = max(_FEWEST_AT_ONCE, (room - size - 1) * len(keys) // max(1, size))
                most = min(most, _AT_ONCE if done < failed else _MOST_AT_ONCE)
            elif len(keys) > _AT_ONCE:
                most, failed = _AT_ONCE, done + len(keys)
            else:
                done += self._produce_each(window, maker, keys, part, closed)
                if scope.produced_bytes >= runner.budget():
                    break
        window.finish(closed)
        return done

    def _produce_each(
        self, window: WindowPanes, maker: ResultMaker, keys: Sequence[bytes], part: Sequence[Any], closed: list[bytes]
    ) -> int:
        """Produce the results of these keys one by one, until the batch is full. Returns how many are done with.

        ``closed`` takes the keys whose results are made. The panes of the others move.
        """
        runner, traces = self._runner, self._setup.meter.traces
        for at, key in enumerate(keys):
            try:
                runner.batch.results.append((key, maker.one(key, part[at : at + 1])))
            except HOOK_ERRORS:
                self._move(window, key)
            else:
                closed.append(key)
                if traces is not None:
                    traces.fired(key)
            if self._setup.scope.produced_bytes >= runner.budget():
                return at + 1
        return len(keys)

    def give_up(self, window: WindowPanes, key: bytes) -> None:
        """Drop the pane of a key, which has a context in the batch with the dead letter for it."""
        window.close([key])
        self._panes.note_change(window)
        self._runner.batch.moved.setdefault(key, []).append(window)  # so it is undone with the letter

    def _move(self, window: WindowPanes, key: bytes) -> None:
        """Move the panes of a key to its state, where its hook produces the result with the next batch.

        If that is not possible, the pane stays, and its key is blocked: its state must be read before, or cannot be
        read. A large state takes the pane in this window alone. Its timer takes it out again with the next batch.
        """
        try:
            if self.mover.move(key, window):
                self._blocked.block(key, Wait.READY)
        except HOOK_ERRORS as error:
            self._outcomes.result_failed(key, window.timer, error)
