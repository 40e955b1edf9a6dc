"""The panes of an interval's open windows, by columns (sections 4.2, 4.4).

A window has a row for each key that has a pane in it. The pane's accumulator is in NumPy columns, which a fold changes
for many records at once (:mod:`millwheel.agg.folds`). A pane that exists also says that a timer is set for the end of
its window. So one commit journals both, and G6 needs nothing else.

Invariant: a pane is here, or in the state of its key with a timer in the timer table, and never in both. It is here
while ``WindowPanes.rows`` has its key.

Invariant: columns are as of the last sealed commit. What the batch at hand adds is in ``added`` until it is sealed, and
the rows that it closes are in ``closing`` and ``leaving``. So what bases and readers get is never ahead of the journal.

A window that ends has its results made in the order of its rows. As long as no pane leaves it in another way, its rows
are known from where they begin (``first``). Then nothing is looked up for a result, and ``rows`` is only made if a pane
is looked up by its key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millwheel.model.keys import KeyInterval
from millwheel.model.time import MAX_TIMESTAMP, TimeDomain
from millwheel.rpc.column_keys import ColumnKeys
from millwheel.sdk.columns import Fold
from millwheel.windows.assigners import window_tag
from millwheel.worker.interval.panes.key_index import KeyIndex, distinct, selector

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column, Rows

__all__ = ["MAX_WINDOWS", "PaneTable", "WindowName", "WindowPanes", "named_form"]

MAX_WINDOWS: Final = 1_000
"""The most windows of a table. Each costs some NumPy calls for each batch with records of it. The panes of further
windows are kept by hooks."""
_PLACE_BYTES: Final = 10
"""Bytes counted for a pane besides its columns and its key: its place in a list."""
_ROW_BYTES: Final = 60
"""Bytes of its entry in a dict, with the number of its row."""
_KEY_BYTES: Final = 50
"""Bytes of its key's object besides the key's length. A window that finds its panes by an index shares it there."""

_MAX_SPARE: Final = 1 << 14
"""The index may have so many keys that have no pane any more, some megabytes."""
_SPARSE: Final = 16
"""With so many keys of the index for each pane and record, a window finds its panes by their keys."""

WindowName = tuple[int, int, bytes]
"""A window's start and end, and the form of its columns, encoded. The same bounds in another form are another window:
an update may change what a computation keeps."""


def named_form(fold: Fold) -> bytes:
    """The form of a fold's columns, encoded."""
    return msgspec.msgpack.encode(fold.form)


class WindowPanes:
    """The panes of one window.

    It has many attributes: its columns and rows, and what the batch at hand does to them. And it has many methods, for
    each way in which a pane begins, is found, and leaves.
    """

    __slots__ = (
        "_rows", "added", "closing", "columns", "counted", "end", "first", "form", "key_bytes", "keys", "leaving",
        "numbered", "passed", "reach", "sealed", "start",
    )  # fmt: skip

    def __init__(self, name: WindowName, kinds: Iterable[str]) -> None:
        """``kinds``: the NumPy types of its columns."""
        import numpy as np

        self.start, self.end, self.form = name
        self._rows: dict[bytes, int] | None = None
        """The rows of the panes that are here, by key. None: ``first`` and ``keys`` say it.

        Invariant (G1): it is there if ``first`` is negative. If it is there, it follows each change."""
        self.keys: list[bytes] = []
        """The keys by row, also those whose panes are not here any more."""
        self.key_bytes = 0
        """The sum of their lengths. A key may have thousands of bytes, so it counts (G13)."""
        self.columns: list[Column] = [np.zeros(0, kind) for kind in kinds]
        self.sealed = 0
        """The rows from here on are new in the batch at hand."""
        self.added: list[tuple[Rows, Sequence[Column]]] = []
        """What the batch at hand adds to rows, in its order."""
        self.closing: dict[bytes, int] = {}
        """The rows whose panes leave the table with the batch at hand, but for ``leaving``. Those that moved may come
        back."""
        self.first = 0
        """If it is not negative, the panes that are here are those of the rows from it on, without an exception."""
        self.leaving = range(0)
        """Rows in succession whose panes leave the table with the batch at hand. They never come back, also if
        ``settled_row`` puts them into ``closing``: only panes that moved do (``HookBatch.moved``)."""
        self.reach: float | None = None
        """See ``known_reach``. None: it is not known."""
        self.passed = -1
        """See ``PaneFiring``."""
        self.counted = 0
        """Its part of the table's ``bytes``."""
        self.numbered: tuple[int, Rows, int] | None = None
        """A generation of a key index, by number the row of that key, and how many of the panes that are here it has.
        -1, or a row before ``first``: it is not known.

        Invariant: any other row is that of the key in ``rows``. So it is dropped when a later row leaves."""

    @property
    def name(self) -> WindowName:
        """Its name in the table."""
        return self.start, self.end, self.form

    @property
    def rows(self) -> dict[bytes, int]:
        """The rows of the panes that are here, by key. The first call makes it: a step for all panes.

        Only the owner's thread may ask. Else a dict could be stored that is older than the window (G1).
        """
        if self._rows is None:
            self._rows = self.listed()
        return self._rows

    def listed(self) -> dict[bytes, int]:
        """``rows``. If it is not there yet, it is made for the caller alone."""
        if self._rows is not None:
            return self._rows
        return dict(zip(self.keys[self.first :], range(self.first, len(self.keys)), strict=True))

    @property
    def count(self) -> int:
        """The number of panes that are here. Any thread may ask."""
        rows = self._rows
        return len(self.keys) - self.first if rows is None else len(rows)

    @property
    def timer(self) -> tuple[int, TimeDomain, str]:
        """The timer that each pane stands for, also while it is here: time, domain and tag."""
        return self.end, TimeDomain.EVENT_TIME, window_tag(self.start, self.end)

    def rows_of(self, keys: Sequence[bytes]) -> Rows:
        """The rows of these keys. A key without a pane gets one."""
        import numpy as np

        found: list[Any] = list(map(self.rows.get, keys))
        if None in found:
            new = list(dict.fromkeys(key for key, row in zip(keys, found, strict=True) if row is None))
            rows = self._new_rows(new)
            if len(new) == len(keys):  # a window of very many keys is filled so
                return rows
            found = list(map(self.rows.__getitem__, keys))
        return np.array(found, np.int64)

    def _new_rows(self, keys: Sequence[bytes]) -> Rows:
        """The rows of keys that differ, and have no pane yet."""
        import numpy as np

        added = range(len(self.keys), len(self.keys) + len(keys))
        if self._rows is not None:
            self._rows.update(zip(keys, added, strict=True))
        self.keys += keys
        self.key_bytes += sum(map(len, keys))
        self.grow()
        return np.arange(added.start, added.stop)

    def rows_of_numbers(self, numbers: Rows, index: KeyIndex) -> Rows:
        """The rows of keys by their numbers in an index. A key without a pane gets one."""
        import numpy as np

        if len(index.keys) > _SPARSE * (self.count + len(numbers)):
            # A place for each key of the index would cost more than the panes (G13).
            self.numbered = None
            chosen, places = np.unique(numbers, return_inverse=True)
            return self.rows_of([index.keys[number] for number in chosen.tolist()])[places]
        generation, known, count = self.numbered or (-1, np.zeros(0, np.int32), 0)
        if generation != index.generation:
            known, count = np.full(len(index.keys), -1, np.int32), 0
        elif len(known) < len(index.keys):
            known = np.concatenate((known, np.full(max(len(index.keys), 2 * len(known)) - len(known), -1, np.int32)))
        rows = known[numbers]
        unknown = np.flatnonzero(rows < max(self.first, 0))
        if len(unknown):
            own = numbers[unknown]
            low, end, all_keys = int(own.min()), int(own.max()) + 1, index.keys
            missing = distinct(own - low, end - low) + low
            # Keys that are new in the index, too, have numbers that follow one another.
            some = all_keys[low:end] if len(missing) == end - low else [all_keys[at] for at in missing.tolist()]
            # If each pane has its number here, the others are new, and are not looked up.
            known[missing] = self._new_rows(some) if count == self.count else self.rows_of(some)
            count += len(missing)
            rows[unknown] = known[own]
        self.numbered = index.generation, known, count
        return rows.astype(np.int64)

    def grow(self) -> None:
        """Make room for all rows. It doubles, and gives a window with one pane room for one."""
        import numpy as np

        count, size = len(self.keys), len(self.columns[0])
        if count > size:
            more = max(count, 2 * size) - size
            self.columns = [np.concatenate((one, np.zeros(more, one.dtype))) for one in self.columns]

    def put(self, rows: Rows, columns: Sequence[Column]) -> None:
        """Set the accumulators of rows."""
        for own, given in zip(self.columns, columns, strict=True):
            own[rows] = given

    def present(self, keys: Collection[bytes], fold: Fold | None) -> list[Column]:
        """The accumulators of these keys' panes, with what the batch at hand adds to them.

        ``fold``: None if nothing was added, because the computation has other columns now.
        """
        import numpy as np

        if self._are_first(keys):
            rows = np.arange(self.first, self.first + len(keys))
        else:
            rows = np.array([self.rows[key] for key in keys], np.int64)
        columns = [column[rows] for column in self.columns]
        if self.added:
            assert fold is not None, "only records of the present form are added"
            order = np.argsort(rows)
            for added, given in self.added:
                places = np.searchsorted(rows, added, sorter=order)
                places[places == len(rows)] = 0
                places = order[places]
                mine = np.flatnonzero(rows[places] == added)
                if len(mine):
                    fold.add(columns, places[mine], [column[mine] for column in given])
        return columns

    def known_reach(self, fold: Fold) -> float:
        """The most by which an integer of any pane differs from zero. It is kept, and each addition raises it.

        So it is soon too large where many panes have additions. With ``reach`` None it is computed again.
        """
        import numpy as np

        if self.reach is None:
            sizes = fold.reach(self.columns)
            for rows, given in self.added:
                steps = fold.steps(given) if given else None
                if sizes is not None and steps is not None:
                    np.add.at(sizes, rows, steps)
            self.reach = 0.0 if sizes is None else float(sizes.max(initial=0.0))
        return self.reach

    def first_keys(self, skipped: int, count: int) -> list[bytes]:
        """So many keys with panes here, behind those that are skipped. They come in the order of rows, or nearly so.

        Any thread may ask. So it reads each attribute once, and stores nothing.
        """
        first, rows = self.first, self._rows
        if first < 0 and rows is not None:
            return list(islice(rows, skipped, skipped + count))
        start = max(first, 0) + skipped
        return self.keys[start : start + count]

    def _are_first(self, keys: Collection[bytes]) -> bool:
        """Whether these are the keys of the first rows with panes here, in their order."""
        return self.first >= 0 and self.keys[self.first : self.first + len(keys)] == keys

    def close(self, keys: Sequence[bytes]) -> None:
        """The panes of these keys leave the table with the batch at hand: they move, or their results are in it."""
        if len(keys) == len(self.rows):
            self.closing.update(self.rows)
            self.rows.clear()
        else:
            self.closing.update(zip(keys, map(self.rows.pop, keys), strict=True))
        self.first = -1
        self.numbered = None

    def finish(self, keys: Sequence[bytes]) -> None:
        """The panes of these keys leave the table, because their results are in the batch. That is never undone:
        ``reopen`` is called for keys of ``HookBatch.moved`` alone.

        Invariant: ``leaving`` has rows in succession. It grows where ``first`` is, and only here does ``first`` move.
        """
        if not self._are_first(keys):
            self.close(keys)
            return
        before = self.count
        if self._rows is not None:
            deque(map(self._rows.pop, keys), maxlen=0)
        if self.numbered is not None:
            generation, known, count = self.numbered  # if it has each pane that is here, it goes on to have each
            self.numbered = (generation, known, count - len(keys)) if count == before else None
        end = self.first + len(keys)
        self.leaving = range(self.leaving.start if self.leaving else self.first, end)
        self.first = end

    def reopen(self, key: bytes) -> None:
        """The pane stays: what the batch did for its key is undone. ``close`` has made ``first`` unknown."""
        self.rows[key] = self.closing.pop(key)
        self.first, self.numbered = -1, None  # for other callers than ``undo_moves``, after ``finish``

    def closed_rows(self) -> Rows:
        """The rows whose panes leave the table with the batch at hand, in increasing order."""
        import numpy as np

        others = np.fromiter(self.closing.values(), np.int64, len(self.closing))
        return np.sort(np.concatenate((np.arange(self.leaving.start, self.leaving.stop), others)))

    def settled(self) -> dict[bytes, int]:
        """The rows of all panes as of the last sealed commit."""
        rows = {key: row for key, row in self.listed().items() if row < self.sealed}
        rows.update((self.keys[row], row) for row in self.closed_rows().tolist() if row < self.sealed)
        return rows

    def settled_row(self, key: bytes) -> int | None:
        """The row of the key's pane as of the last sealed commit. None: it had none.

        Only the owner's thread may ask: rows go from ``leaving`` into ``closing``, and ``rows`` is made. From then on
        ``settled`` looks at each pane.
        """
        if self.leaving:  # who asks for one key asks for others, too
            self.closing.update((self.keys[row], row) for row in self.leaving)
            self.leaving = range(0)
        row = self.rows.get(key, self.closing.get(key))
        return None if row is None or row >= self.sealed else row

    def find_first(self) -> None:
        """Find where its rows begin, after they were read from a journal."""
        first = min(self.rows.values(), default=len(self.keys))
        if self.count == len(self.keys) - first:
            self.first, self._rows = first, None
        else:
            self.first = -1

    @property
    def bytes(self) -> int:
        """Approximate memory."""
        size = self.key_bytes + sum(column.nbytes for column in self.columns)
        each = _PLACE_BYTES + (0 if self._rows is None else _ROW_BYTES)
        if self.numbered is None:
            return len(self.keys) * (each + _KEY_BYTES) + size
        return len(self.keys) * each + size + self.numbered[1].nbytes


class PaneTable:
    """The windows of an interval that have panes. ``fold``: adds records. None: the computation has no columns now."""

    def __init__(self, fold: Fold | None = None) -> None:
        self.fold = fold
        self.form = b"" if fold is None else named_form(fold)
        """The present form. Records are added to windows of this form alone."""
        self.windows: dict[WindowName, WindowPanes] = {}
        self.changed: dict[WindowName, WindowPanes] = {}
        """The windows that the batch at hand changes."""
        self.bytes = 0
        """Approximate memory: of the windows as of the last sealed commit, and of the index."""
        self._index_bytes = 0
        """The part of the index."""
        self._first: int | None = None
        self._sought = True

    @cached_property
    def index(self) -> KeyIndex:
        """Numbers of keys that came as columns. It is made when there are some: not every worker has NumPy."""
        return KeyIndex()

    def numbers_of(self, keys: Sequence[bytes], indexes: Sequence[int]) -> Rows | None:
        """The numbers of some of these keys in the index. None: the keys are objects already, or have no numbers.

        The index is emptied when it has far more keys than the windows: it may have those of former ones (G13).
        """
        if not isinstance(keys, ColumnKeys):
            return None
        index = self.index
        spare = len(index.keys) - _MAX_SPARE
        if spare > 0 and spare > max((window.count for window in self.windows.values()), default=0):
            index.empty()
        numbers = index.numbers_of(keys, selector(indexes))
        self._count_index()
        return numbers

    def _count_index(self) -> None:
        size = self.index.bytes
        self.bytes += size - self._index_bytes
        self._index_bytes = size

    def __len__(self) -> int:
        """The number of panes. Each is a timer, too. Any thread may ask."""
        return sum(window.count for window in list(self.windows.values()))

    @property
    def largest(self) -> WindowPanes | None:
        """The window with the most panes. None: there are no panes. Any thread may ask."""
        # The event loop's thread may change the table. To list it is one step of the interpreter.
        windows = list(self.windows.values())
        return max((one for one in windows if one.count), key=lambda one: one.count, default=None)

    @property
    def first_end(self) -> int | None:
        """The end of the first window that has panes. No pane is due before it. None: there are none."""
        if not self._sought:
            self._first = min((one.end for one in self.windows.values() if one.count), default=None)
            self._sought = True
        return self._first

    def due(self, upto: int) -> list[WindowPanes]:
        """The windows with panes that end by ``upto``, in the order of their ends."""
        if (first := self.first_end) is None or first > upto:
            return []
        return sorted((one for one in self.windows.values() if one.count and one.end <= upto), key=_by_end)

    def others(self) -> list[WindowPanes]:
        """The windows with panes in another form than the present one."""
        return [one for one in self.windows.values() if one.form != self.form and one.count]

    def of_key(self, key: bytes, upto: int = MAX_TIMESTAMP) -> list[WindowPanes]:
        """The windows that end by ``upto`` in which the key has a pane here, in the order of their ends.

        It is asked for each key of a delivery. So it looks at no window if none is due.
        """
        if upto < MAX_TIMESTAMP and ((first := self.first_end) is None or first > upto):
            return []
        found = [one for one in self.windows.values() if one.end <= upto and key in one.rows]
        return sorted(found, key=_by_end) if len(found) > 1 else found

    def with_panes(self, keys: Iterable[bytes], windows: Iterable[WindowPanes]) -> list[bytes]:
        """Those of the keys that have a pane in one of the windows, in increasing order."""
        wanted, found = set(keys), set[bytes]()
        for window in windows:
            found |= window.rows.keys() & wanted
        return sorted(found)

    def changing(self, name: WindowName, kinds: Iterable[str]) -> WindowPanes:
        """The window, which the batch at hand changes. It is made if it is not there."""
        found = self.windows.get(name)
        if found is None:
            found = self.windows[name] = WindowPanes(name, kinds)
        self.note_change(found)
        return found

    def note_change(self, window: WindowPanes) -> None:
        """The batch at hand changes the window: it adds, closes or reopens a row."""
        self.changed[window.name] = window
        self._sought = False

    def settle(self) -> None:
        """What has changed is sealed. Windows without panes leave the table."""
        for name, window in self.changed.items():
            self._count(window)
            if not window.count:
                del self.windows[name]
        self.changed, self._sought = {}, False
        if not self.windows and self._index_bytes and self.index.keys:
            self.index.empty()
            self._count_index()

    def _count(self, window: WindowPanes) -> None:
        """Count its memory. A dict of its rows that a reader makes counts from the next change on."""
        now = window.bytes if window.count else 0
        self.bytes += now - window.counted
        window.counted = now

    def find_first(self) -> None:
        """Find where the rows of each window begin, after they were read from a journal."""
        for window in self.windows.values():
            window.find_first()
            self._count(window)

    def take_in(self, others: Sequence[PaneTable], keys: KeyInterval) -> None:
        """Add the panes of parents' tables for these keys. No key has a pane in two of them.

        Rows are numbered by the order of keys. So each owner of the child numbers them alike, as the child's journal
        does (G12).
        """
        names = sorted({name for other in others for name in other.windows})
        for name in names:
            parents = [other.windows[name] for other in others if name in other.windows]
            found = sorted((key, at) for at, parent in enumerate(parents) for key in parent.rows if key in keys)
            if not found:
                continue
            window = self.changing(name, [column.dtype.str for column in parents[0].columns])
            rows = window.rows_of([key for key, _ in found])
            for at, parent in enumerate(parents):
                mine = [place for place, (_, of) in enumerate(found) if of == at]
                theirs = [parent.rows[found[place][0]] for place in mine]
                window.put(rows[mine], [column[theirs] for column in parent.columns])
            window.sealed = len(window.keys)
        self.settle()


def _by_end(window: WindowPanes) -> tuple[int, WindowName]:
    return window.end, window.name
