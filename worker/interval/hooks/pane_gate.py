"""The gate: which records are added to panes by columns, and which run in hooks (sections 4.2, 6.1.1; G1, G5).

It keeps one invariant: *a pane has one place*, the table or the state of its key. Its rules:

1. A pane in the table takes its records there. A pane in the state of its key takes them in hooks: its timer shows it.
2. A new pane begins in the table if its delivery and its window may begin any there. Otherwise its hook makes it.
3. A record that only its hook can judge runs there, with all other records of its key in their order. The panes of the
   key move to its state before. Such a record cannot be read, or has a number that no column takes. Or its key has a
   pane in columns of another form.
4. A record that touches no pane runs in its hook, and nothing moves. Its window is over, or the computation's options
   divert or drop it.
5. A record that would be added behind a hook of its key waits for the commit of that hook (G15). An addition is not
   undone, but a hook is, if a later one of its batch fails. If a record behind it needs a hook, too, then all go to
   hooks by rule 3: a delivery that has two windows in turns would need a commit for each turn.

So a record is added only to the pane to which the hook would have added it, and in the same order. Adding it cannot
fail.
"""

from __future__ import annotations

from collections.abc import Container, Sequence, Set
from typing import TYPE_CHECKING, Any, Final

from millwheel.model.time import TimeDomain
from millwheel.sdk.columns import ColumnWindows
from millwheel.sdk.options import LateAction
from millwheel.windows.assigners import window_tag
from millwheel.worker.interval.hooks.pane_reading import Divided, PaneReader, picked
from millwheel.worker.interval.hooks.runner import Runner
from millwheel.worker.interval.intake import DeliveryReceipt, increasing
from millwheel.worker.interval.panes.key_index import distinct, selector
from millwheel.worker.interval.panes.table import MAX_WINDOWS, WindowPanes
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import Delivery

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column

__all__ = ["PaneGate", "starts_in"]

_FAR: Final = 1 << 60
"""Windows that reach beyond it, in either direction, are left to hooks: further bounds could leave the machine's
integers. All records of such a window are, so that its panes have one place."""
_FEW_WINDOWS: Final = 8
"""Records of so many windows are compared with the bounds of each."""
_MAX_REACH: Final = float(1 << 62)
"""Integers of a pane that may be beyond it are left to hooks. Half of the machine's range is a margin for rounding."""


class PaneGate:
    """Divides the records of a computation with windows by columns."""

    def __init__(self, state: IntervalState, windows: ColumnWindows, runner: Runner) -> None:
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._timers = state.timers
        self._blocked = state.blocked
        self._cells = state.cells
        self._panes = state.panes
        self._windows = windows
        self._reader = PaneReader(state, windows.fold)
        self._runner = runner

    def may_begin(self, receipt: DeliveryReceipt) -> bool:
        """Whether records of the delivery may begin panes in the table: a part of rule 2.

        A small delivery is quicker in hooks. At the limit of memory further panes are states, which can be evicted
        (G13). While timers are in the store alone, it is unknown which panes are in states.
        """
        settings, panes, cells = self._setup.settings, self._panes, self._cells
        return (
            len(receipt.delivery.keys) >= settings.columns_from
            and panes.bytes < settings.columns_bytes
            and panes.bytes + cells.bytes_held < settings.cache_bytes
            and not self._timers.spilled.parts
        )

    def divide(self, receipt: DeliveryReceipt, indexes: Sequence[int]) -> Divided:
        """Apply the rules to records of one delivery."""
        assert increasing(indexes), "queued records are in the delivery's order (G1)"
        keys = receipt.delivery.keys
        found = self._in_time(receipt, indexes)
        self._reader.read(receipt, indexes, found)
        self._note_overflows(found, keys, indexes)
        if others := self._panes.others():
            found.moving.update(dict.fromkeys(self._panes.with_panes((keys[index] for index in indexes), others)))
        begins = self.may_begin(receipt)
        new = [start for start in starts_in(found.starts, self._windows.size) if self._window(start) is None]
        room = MAX_WINDOWS - len(self._panes.windows)
        if found.moving or not begins or len(new) > room or self._some_in_hooks(keys, indexes, found.places):
            begun = set(sorted(new)[: max(0, room)]) if begins else set()
            moving, by_columns = found.moving, self._by_columns
            bounds = zip(picked(keys, picked(indexes, found.places)), found.starts.tolist(), strict=True)
            found.keep([key not in moving and by_columns(key, start, begins, begun) for key, start in bounds])
        if self._some_beside_hooks(keys, indexes, found):
            self._keep_order([keys[index] for index in indexes], found)
        return found

    def _some_beside_hooks(self, keys: Sequence[bytes], indexes: Sequence[int], found: Divided) -> bool:
        """Whether some records are left to hooks, or others may come behind a hook of their key. Dropped ones count."""
        if found.moving or len(found.places) + len(found.dropped) < len(indexes):
            return True
        tables = self._blocked.keys.keys(), self._runner.batch.contexts.keys()
        return any(self._have(table, keys, indexes, range(len(indexes))) for table in tables)

    def _keep_order(self, keys: Sequence[bytes], found: Divided) -> None:
        """Divide what is not added between hooks and those that wait: rule 5. ``keys``: those of all records."""
        moving, ran = found.moving, self._runner.batch.contexts
        taken = {*found.places.tolist(), *found.dropped}
        hooks = [place for place in range(len(keys)) if place not in taken]
        last = {keys[place]: place for place in hooks}
        first = {keys[place]: place for place in reversed(hooks)}
        behind = {
            place for place in found.places.tolist() if (key := keys[place]) in ran or first.get(key, place) < place
        }
        moving.update((keys[place], None) for place in behind if place < last.get(keys[place], place))
        found.waiting = [place for place in sorted(behind) if keys[place] not in moving]
        found.keep([place not in behind and keys[place] not in moving for place in found.places.tolist()])
        apart = self._blocked.keys.keys() | moving.keys() | first.keys()
        found.dropped = [place for place in found.dropped if keys[place] not in apart and keys[place] not in ran]
        taken = {*found.places.tolist(), *found.dropped, *found.waiting}
        found.for_hooks = [place for place in range(len(keys)) if place not in taken]

    def _by_columns(self, key: bytes, start: int, begins: bool, begun: Container[int]) -> bool:
        """Whether the pane of a key in the window from ``start`` takes records in the table: rules 1 and 2.

        ``begun``: the starts of the windows that may begin in the table.
        """
        if key in self._blocked.keys:
            return False
        window = self._window(start)
        if window is not None and key in window.rows:
            return True
        return begins and (window is not None or start in begun) and not self._in_state(key, start)

    def _in_state(self, key: bytes, start: int) -> bool:
        """Whether the key's pane, which is not in the table, is in its state: it has a timer there."""
        tag = window_tag(start, start + self._windows.size)
        if self._timers.event_time.get(key, tag) is not None:
            return True
        context = self._runner.batch.contexts.get(key)
        set_now = None if context is None else context._timers
        return set_now is not None and set_now.get((TimeDomain.EVENT_TIME, tag)) is not None

    def _some_in_hooks(self, keys: Sequence[bytes], indexes: Sequence[int], places: Column) -> bool:
        """Whether the key of any of these records is blocked, or may have a pane in its state."""
        tables = self._blocked.keys.keys(), self._runner.batch.contexts.keys(), self._timers.event_time.keys()
        return any(self._have(table, keys, indexes, places) for table in tables)

    @staticmethod
    def _have(table: Set[bytes], keys: Sequence[bytes], indexes: Sequence[int], places: Column | range) -> bool:
        """Whether a table has the key of any of these records. Usually it is empty, so no key becomes an object."""
        return bool(table) and not table.isdisjoint(picked(keys, picked(indexes, places)))

    def _window(self, start: int) -> WindowPanes | None:
        return self._panes.windows.get((start, start + self._windows.size, self._panes.form))

    # What is known of the records before their keys are looked at.

    def _in_time(self, receipt: DeliveryReceipt, indexes: Sequence[int]) -> Divided:
        """The records whose windows are not over, and that no option of the computation diverts or drops: rule 4."""
        import numpy as np

        delivery, clocks, size = receipt.delivery, self._clocks, self._windows.size
        stamps = np.array(delivery.timestamps, np.int64)
        if len(indexes) != len(stamps):
            stamps = stamps[selector(indexes)]
        if (starts := self._all_in_time(delivery, stamps)) is not None:
            return Divided(np.arange(len(stamps)), starts)
        fits = (stamps > -2 * _FAR) & (stamps < 2 * _FAR)
        near = np.where(fits, stamps, 0)
        starts = near - (near - self._windows.offset) % size
        watermark: Any = clocks.watermark
        if clocks.bounded:
            watermark = np.array([clocks.watermark_of(delivery.keys[index]) for index in indexes], np.int64)
        fits &= (starts > -_FAR) & (starts + size < _FAR) & (starts + size > watermark)
        program = self._setup.program
        if program.options.late.action is not LateAction.PROCESS and delivery.stream not in program.never_late:
            fits &= stamps >= watermark
        places = np.flatnonzero(fits)
        return Divided(places, starts[places])

    def _all_in_time(self, delivery: Delivery, stamps: Column) -> Column | None:
        """The starts of the records' windows, if rule 4 is for none of them. None: it may be for some.

        It says what ``_in_time`` says, from the first and the last timestamp: a division for each is the larger cost.
        """
        import numpy as np

        size, offset, watermark = self._windows.size, self._windows.offset, self._clocks.watermark
        low, high = int(stamps.min()), int(stamps.max())
        first, last = (at - (at - offset) % size for at in (low, high))
        if (last - first) // size > _FEW_WINDOWS or not -_FAR < first < last + size < _FAR:
            return None
        program = self._setup.program
        on_time = program.options.late.action is LateAction.PROCESS or delivery.stream in program.never_late
        if self._clocks.bounded or first + size <= watermark or not (on_time or low >= watermark):
            return None
        starts = np.full(len(stamps), first, np.int64)
        for bound in range(first + size, last + size, size):
            starts[stamps >= bound] = bound
        return starts

    def _note_overflows(self, found: Divided, keys: Sequence[bytes], indexes: Sequence[int]) -> None:
        """Integers that may leave the machine's range fall under rule 3. In hooks they are Python's."""
        import numpy as np

        fold = self._windows.fold
        steps = fold.steps(found.given) if found.given else None
        if steps is None:
            return
        starts = starts_in(found.starts, self._windows.size)
        for start in starts:
            window = self._window(start)
            places: Any = np.flatnonzero(found.starts == start) if len(starts) > 1 else slice(None)
            reach = 0.0 if window is None else window.known_reach(fold)
            growth = float(steps[places].sum())
            if reach + growth <= _MAX_REACH:
                continue
            # These are sums over all panes. No single one may be near the limit.
            own = [keys[indexes[place]] for place in found.places[places].tolist()]
            growth = _most_of_a_key(own, steps[places].tolist())
            if window is not None:
                window.reach = None
                reach = window.known_reach(fold)
            if reach + growth > _MAX_REACH:
                found.moving.update(dict.fromkeys(own))


def starts_in(starts: Column, size: int) -> list[int]:
    """The distinct starts of windows of one size."""
    import numpy as np

    least, last = int(starts.min(initial=_FAR)), int(starts.max(initial=-_FAR))
    if least >= last:
        return [least] if len(starts) else []
    numbers, most = (starts - least) // size, (last - least) // size
    chosen = distinct(numbers, most + 1) if most < len(starts) else np.unique(numbers)
    return [least + number * size for number in chosen.tolist()]


def _most_of_a_key(keys: Sequence[bytes], steps: Sequence[float]) -> float:
    """The largest sum of the steps of one key."""
    sums = dict[bytes, float]()
    for key, step in zip(keys, steps, strict=True):
        sums[key] = sums.get(key, 0.0) + step
    return max(sums.values())
