"""The panes of an interval's open windows, by columns (sections 4.2, 4.4).

A window has a row for each key that has records in it. A row's accumulator is in NumPy columns, which a fold changes
for many records at once (:mod:`millwheel.agg.folds`). A pane that exists also says that a timer is set for the end of
its window. So one commit journals both, and G6 needs nothing else.

Invariant: a pane is here, or in the state of its key with a timer in the timer table, and never in both. It is here
while its row is neither *moved* to the key's state nor *fired*.

The table changes as records run, before their batch is sealed. What bases and readers get is the sealed part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from millwheel.model.keys import KeyInterval

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column, Rows

__all__ = ["PaneRows", "PaneTable", "WindowPanes"]

_FIRST_ROWS: Final = 64
_ROW_BYTES: Final = 150
"""Bytes counted for a pane besides its key and its columns: an entry of a dict and of a list, and the key's object."""


class PaneRows:
    """Which rows of a window are panes, and their columns.

    ``fired`` is the first row whose result is not produced. Rows before it that are in ``left`` have none either.
    ``moved`` has the rows whose panes are in the states of their keys.
    """

    __slots__ = ("columns", "count", "fired", "left", "moved")

    def __init__(self, columns: list[Column]) -> None:
        self.columns = columns
        self.count = 0
        self.fired = 0
        self.left: set[int] = set()
        self.moved: set[int] = set()

    def has(self, row: int) -> bool:
        """Whether the row is a pane."""
        return row < self.count and row not in self.moved and (row >= self.fired or row in self.left)

    @property
    def over(self) -> bool:
        """Whether no pane is left."""
        return self.fired == self.count and not self.left

    def waiting(self, most: int) -> list[int]:
        """The next panes without a result, and at most so many."""
        rows = sorted(self.left)[:most]
        end = min(self.count, self.fired + most - len(rows))
        return rows + [row for row in range(self.fired, end) if row not in self.moved]

    def done(self, rows: Sequence[int], kept: Sequence[int]) -> None:
        """The results of ``rows``, which ``waiting`` has returned, are produced, except for the ``kept`` ones."""
        self.left.difference_update(rows)
        if rows:
            self.fired = max(self.fired, rows[-1] + 1)
        self.left.update(row for row in kept if row < self.fired)
        self._pass_moved()

    def move(self, row: int) -> None:
        """The pane is in the state of its key from now on."""
        self.moved.add(row)
        self.left.discard(row)
        self._pass_moved()

    def put_back(self, row: int) -> None:
        """The pane that ``move`` gave away has not reached the state of its key."""
        self.moved.discard(row)
        if row < self.fired:
            self.left.add(row)

    def _pass_moved(self) -> None:
        while self.fired in self.moved:
            self.fired += 1

    def grow(self, count: int) -> None:
        """Make room for so many rows."""
        import numpy as np

        self.count = count
        size = len(self.columns[0])
        if count > size:
            more = max(count, 2 * size, _FIRST_ROWS) - size
            self.columns = [np.concatenate((one, np.zeros(more, one.dtype))) for one in self.columns]

    def put(self, rows: Rows, numbers: Sequence[Column]) -> None:
        """Set the accumulators of these rows."""
        for at, given in enumerate(numbers):
            if given.dtype == object and self.columns[at].dtype != object:
                self.columns[at] = self.columns[at].astype(object)
            self.columns[at][rows] = given


class WindowPanes:
    """The panes of one window."""

    __slots__ = ("end", "keys", "now", "rows", "sealed", "start", "touched")

    def __init__(self, start: int, end: int, columns: Sequence[Column]) -> None:
        """``columns``: without rows."""
        self.start = start
        self.end = end
        self.rows: dict[bytes, int] = {}
        self.keys: list[bytes] = []
        self.now = PaneRows(list(columns))
        self.sealed = PaneRows(list(columns))
        """As the last sealed commit left it."""
        self.touched: list[Rows] = []
        """The rows that have changed since."""

    def row_of(self, key: bytes) -> int | None:
        """The row of the key's pane. None: it has none here."""
        row = self.rows.get(key)
        return None if row is None or not self.now.has(row) else row

    def rows_of(self, keys: Sequence[bytes]) -> Rows:
        """The rows of these keys, which are about to change. A key without one gets the next one."""
        import numpy as np

        found: list[Any] = list(map(self.rows.get, keys))
        if None in found:
            known, own = self.rows, self.keys
            for place, row in enumerate(found):
                if row is None:
                    key = keys[place]
                    row = known.get(key)
                    if row is None:
                        row = known[key] = len(own)
                        own.append(key)
                    found[place] = row
            self.now.grow(len(own))
        rows = np.array(found, np.int64)
        self.touched.append(rows)
        return rows

    def seal(self) -> Rows:
        """The present panes are part of a commit. Returns the rows that have changed."""
        import numpy as np

        rows = np.unique(np.concatenate(self.touched)) if self.touched else np.zeros(0, np.int64)
        now, sealed = self.now, self.sealed
        sealed.grow(now.count)
        sealed.put(rows, [column[rows] for column in now.columns])
        sealed.fired, sealed.left, sealed.moved, self.touched = now.fired, set(now.left), set(now.moved), []
        return rows

    @property
    def bytes(self) -> int:
        """Approximate memory."""
        columns = 2 * 8 * len(self.now.columns)
        return sum(map(len, self.keys)) + len(self.keys) * (_ROW_BYTES + columns)


class PaneTable:
    """The windows of an interval that have panes, by their starts."""

    def __init__(self) -> None:
        self.form: Any = None
        """What the columns are: see ``Fold.form``. It stays while there is a window."""
        self.windows: dict[int, WindowPanes] = {}
        self.changed: dict[int, WindowPanes] = {}
        """The windows that have changed since the last sealed commit, by start."""
        self.ended: list[WindowPanes] = []
        """The windows that have ended since. Their sealed parts may still have panes."""

    @property
    def first_end(self) -> int | None:
        """The end of the first window. No pane is due before it."""
        return min((window.end for window in self.windows.values()), default=None)

    def window(self, start: int, end: int, columns: Sequence[Column]) -> WindowPanes:
        """The window, which is about to change. It is made, with these columns without rows, if it is not there."""
        found = self.windows.get(start)
        if found is None:
            found = self.windows[start] = WindowPanes(start, end, columns)
        self.changed[start] = found
        return found

    def end(self, window: WindowPanes) -> None:
        """Drop a window whose panes have all fired or moved, and that gets no others."""
        del self.windows[window.start]
        self.changed.pop(window.start, None)
        self.ended.append(window)

    def reopen(self, window: WindowPanes) -> None:
        """Take a window back that ``end`` has dropped in this batch."""
        if window in self.ended:
            self.ended.remove(window)
            self.windows[window.start] = window
        self.changed[window.start] = window

    def sealed(self) -> Iterator[WindowPanes]:
        """The windows as of the last sealed commit, of which only ``sealed`` counts."""
        yield from self.ended
        yield from (window for window in self.windows.values() if window.sealed.count)

    def of_key(self, key: bytes) -> Iterator[tuple[WindowPanes, int]]:
        """The key's sealed panes: the window and the row of each."""
        for window in self.sealed():
            row = window.rows.get(key)
            if row is not None and window.sealed.has(row):
                yield window, row

    def take_in(self, other: PaneTable, keys: KeyInterval) -> None:
        """Add the panes of another interval's table for these keys. None of the keys has a pane here."""
        for theirs in other.windows.values():
            rows = [row for row, key in enumerate(theirs.keys) if key in keys and theirs.now.has(row)]
            if rows:
                self.form = other.form
                window = self.window(theirs.start, theirs.end, [column[:0] for column in theirs.now.columns])
                own = window.rows_of([theirs.keys[row] for row in rows])
                window.now.put(own, [column[rows] for column in theirs.now.columns])
        self.settle()

    def settle(self) -> None:
        """What the table has is what the journals say."""
        for window in self.windows.values():
            window.seal()
        self.changed, self.ended = {}, []
