"""Running queued records of a computation, by columns and by hooks (sections 4.2, 6.1.1; G1, G5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from millwheel.worker.interval.blocked_key_table import RecordItem, Wait
from millwheel.worker.interval.hooks.failures import HOOK_ERRORS
from millwheel.worker.interval.hooks.pane_gate import PaneGate, starts_in
from millwheel.worker.interval.hooks.pane_moving import PaneMover
from millwheel.worker.interval.hooks.pane_reading import Divided, picked
from millwheel.worker.interval.hooks.runner import Runner
from millwheel.worker.interval.intake import DeliveryReceipt
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column, Rows

__all__ = ["PaneAdder"]

_ROW_BYTES: Final = 8
"""Bytes of a changed row in an entry, for each of its columns, and for its number."""


class PaneAdder:
    """Runs records as the gate divides them.

    Invariant: while the table has panes, no hook of a key runs for a record that the gate has not seen. A computation
    may have panes in columns although it keeps none now, by an update or by the worker's settings. Then all panes of a
    key move before its records run.
    """

    def __init__(self, state: IntervalState, runner: Runner, mover: PaneMover) -> None:
        self._setup: IntervalSetup = state
        self._blocked = state.blocked
        self._panes = state.panes
        self._runner = runner
        self._mover = mover
        windows = state.column_windows
        self._windows = windows
        self._gate = None if windows is None else PaneGate(state, windows, runner)

    def run_records(self, receipt: DeliveryReceipt, indexes: Sequence[int], alone: bool) -> tuple[int, int, int]:
        """Run records of one delivery: see ``Runner.run_hooks``.

        Args:
            receipt: The delivery.
            indexes: The records.
            alone: Whether it is the next record of a blocked key, which has an open context. It runs in its hook.
        """
        gate, keys = self._gate, receipt.delivery.keys
        if not self._panes.windows and (gate is None or not gate.may_begin(receipt)):
            return self._runner.run_hooks(receipt, indexes, alone)
        if gate is None or alone:
            moving = self._panes.with_panes((keys[index] for index in indexes), self._panes.windows.values())
            return self._run_hooks(receipt, indexes, moving, alone)
        found = gate.divide(receipt, indexes)
        done, waits, calls = len(indexes), 0, 0
        if found.for_hooks:
            in_hooks = [indexes[place] for place in found.for_hooks]
            ran, waits, calls = self._run_hooks(receipt, in_hooks, found.moving, False)
            done = done if ran == len(in_hooks) else found.for_hooks[ran]
        if found.for_hooks or found.waiting:
            waits += self._leave(receipt, indexes, found, done)
        added = picked(indexes, found.places)
        if added:
            self._add(keys, added, found)
            self._setup.meter.records.by_columns += len(added)
            self._trace(receipt, added)
        taken = indexes
        if len(added) + len(found.dropped) < len(indexes):
            taken = added if not found.dropped else [*added, *(indexes[place] for place in found.dropped)]
        if taken:
            self._runner.batch.added_of(receipt).extend(taken)
        return done, waits, len(added) + calls

    def _leave(self, receipt: DeliveryReceipt, indexes: Sequence[int], found: Divided, done: int) -> int:
        """Leave out what is not added now: from place ``done`` on, and what waits for the commit of a hook.

        Returns how many of them wait with their blocked key.
        """
        keys, blocked = receipt.delivery.keys, self._blocked
        waiting = [indexes[place] for place in found.waiting if place < done]
        for index in waiting:
            if (key := keys[index]) not in blocked.keys:  # otherwise its hook has failed, or waits
                blocked.block(key, Wait.READY)
            blocked.set_aside(key, receipt, index)
        found.dropped = [place for place in found.dropped if place < done]
        found.keep(found.places < done)
        return len(waiting)

    def _add(self, keys: Sequence[bytes], added: Sequence[int], found: Divided) -> None:
        """Add records to their panes. ``keys``: of the whole delivery."""
        import numpy as np

        starts, fold = found.starts, self._panes.fold
        assert fold is not None, "records are added while the computation has columns"
        self._runner.batch.size += len(added) * _ROW_BYTES * (1 + len(fold.kinds))
        numbers = self._panes.numbers_of(keys, added)
        own = picked(keys, added) if numbers is None else ()
        if (starts == starts[0]).all():
            self._add_to(int(starts[0]), own, numbers, found.given)
            return
        assert self._windows is not None, "records are added while the computation has columns"
        for start in starts_in(starts, self._windows.size):
            places = np.flatnonzero(starts == start)
            some = () if numbers is not None else [own[place] for place in places.tolist()]
            some_numbers = None if numbers is None else numbers[places]
            self._add_to(start, some, some_numbers, [one[places] for one in found.given])

    def _add_to(self, start: int, keys: Sequence[bytes], numbers: Rows | None, given: Sequence[Column]) -> None:
        """Add records to the panes of one window, by their keys, or by the numbers of their keys."""
        windows = self._windows
        assert windows is not None, "records are added while the computation has columns"
        window = self._panes.changing((start, start + windows.size, self._panes.form), windows.fold.kinds)
        known = window.key_bytes
        steps = windows.fold.steps(given) if given else None
        if steps is not None:
            window.reach = window.known_reach(windows.fold) + float(steps.sum())
        rows = window.rows_of(keys) if numbers is None else window.rows_of_numbers(numbers, self._panes.index)
        window.added.append((rows, given))
        self._runner.batch.size += window.key_bytes - known

    def _run_hooks(
        self, receipt: DeliveryReceipt, indexes: Sequence[int], moving: Iterable[bytes], alone: bool
    ) -> tuple[int, int, int]:
        """Run records in hooks, after the panes of some keys have moved to their states.

        A record whose key's panes cannot move fails, as its hook would: the state cannot be read. Returns how many of
        the records, in their order, are done with or wait.
        """
        runner, keys, unmoved = self._runner, receipt.delivery.keys, dict[bytes, BaseException]()
        for key in moving:
            if alone or key not in self._blocked.keys:
                try:
                    self._mover.move(key)
                except HOOK_ERRORS as error:
                    unmoved[key] = error
        called, failed = 0, set[int]()
        for key, why in unmoved.items():
            first = next(index for index in indexes if keys[index] == key)
            called += 1 - runner.reading_failed(key, RecordItem(receipt, first), why)
            failed.add(first)
        if not failed:
            return runner.run_hooks(receipt, indexes, alone)
        rest, waits = [index for index in indexes if index not in failed], 0
        while rest:  # not a part of them, because those that have failed are done with
            ran, waiting, calls = runner.run_hooks(receipt, rest, alone)
            rest, waits, called = rest[ran:], waits + waiting, called + calls
        return len(indexes), waits, called

    def _trace(self, receipt: DeliveryReceipt, added: Sequence[int]) -> None:
        """The sampled records among those that were added have their spans."""
        traces = self._setup.meter.traces
        if traces is not None and receipt.delivery.traces is not None:
            traces.added(receipt.delivery, added)
