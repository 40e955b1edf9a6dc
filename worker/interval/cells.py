"""The cache of one interval's key states, with a limit and a sense of time (section 8.3).

A cell whose latest commit has not reached its state row is *dirty* and pinned: nothing else holds that
state but the journal. A clean cell may go; the row then says what it held (a cache miss may trust it).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Final

from millwheel.sdk.context import StateCell

__all__ = ["CELL_OVERHEAD", "CellCache", "KeyCell"]

CELL_OVERHEAD: Final = 400
"""Bytes counted for a cell beside its state: dict slots, key, the cell object, a small decoded state."""

_LOOK: Final = 64
"""Cells that a call of ``evict`` may cost, on average, while nothing can go."""

_DECODED_FACTOR: Final = 3
"""A decoded state is counted as this many times its encoded size, the encoded bytes included."""


class KeyCell(StateCell):
    """One key's state, whether its row is behind (``dirty``: the newest sealed commit), and when it was last used."""

    __slots__ = ("dirty", "used")

    def __init__(self, encoded: bytes = b"") -> None:
        super().__init__(encoded)
        self.dirty = 0
        self.used = 0


class CellCache:
    """The cells of one interval.

    Invariant: a key without a cell has exactly the state of its row; while ``evicted`` is False no
    row of this interval exists that is not also in a cell, so such a key has no state at all.
    """

    def __init__(self, limit_bytes: int, evicted: bool) -> None:
        self.limit_bytes = limit_bytes
        self.evicted = evicted
        self.bytes_held = 0
        self.hits = 0
        self.misses = 0
        self._cells: dict[bytes, KeyCell] = {}
        self._dirty: dict[bytes, KeyCell] = {}
        self._skip = 0
        """Calls of ``evict`` until a look at every cell may be worth its while again."""

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, key: bytes) -> bool:
        return key in self._cells

    @property
    def dirty_count(self) -> int:
        """How many cells are pinned."""
        return len(self._dirty)

    @property
    def bytes_pinned(self) -> int:
        """What pinned cells hold, about: their share of all."""
        return self.bytes_held * len(self._dirty) // max(1, len(self._cells))

    @property
    def crowded(self) -> bool:
        """Over the limit, for a good part with pinned cells: their rows should be flushed now."""
        return self.bytes_held > self.limit_bytes and 2 * self.bytes_pinned > self.limit_bytes

    @property
    def overfull(self) -> bool:
        """Pinned cells alone are over the limit: nothing should be run that can wait (G13)."""
        return self.bytes_held > self.limit_bytes and self.bytes_pinned > self.limit_bytes

    def cached(self) -> Mapping[bytes, KeyCell]:
        """The cells by key, to look up many at a time; a key that is not among them goes to ``get``."""
        return self._cells

    def get(self, key: bytes) -> KeyCell | None:
        """The key's cell; None if its row must be read first (then ``insert`` it)."""
        cell = self._cells.get(key)
        if cell is not None:
            return cell
        if self.evicted:
            self.misses += 1
            return None
        return self.insert(key, b"")

    def insert(self, key: bytes, encoded: bytes) -> KeyCell:
        """A cell for a key that has none, with what its row holds."""
        cell = KeyCell(encoded)
        self._cells[key] = cell
        self.bytes_held += len(key) + len(encoded) * _DECODED_FACTOR + CELL_OVERHEAD
        return cell

    def changed(self, states: Iterable[tuple[bytes, bytes]], commit: int) -> None:
        """Commit ``commit`` gives these keys, which have cells, these encoded states; their rows are behind now."""
        cells, dirty = self._cells, self._dirty
        grown = 0
        for key, encoded in states:
            cell = cells[key]
            grown += len(encoded) - len(cell.encoded)
            cell.encoded = encoded
            if not cell.dirty:
                dirty[key] = cell
            cell.dirty = commit
        self.bytes_held += grown * _DECODED_FACTOR

    def dirty_rows(self) -> list[tuple[bytes, int, bytes]]:
        """(key, commit, encoded state) of every pinned cell; call it only while no sealed commit is in flight."""
        return [(key, cell.dirty, cell.encoded) for key, cell in self._dirty.items()]

    def flushed(self, rows: list[tuple[bytes, int, bytes]], busy: Container[bytes] = ()) -> None:
        """The rows are acknowledged: cells that have not changed since are clean, and go where they hold no state.

        The cells of ``busy`` keys are in use, and stay.
        """
        for key, commit, encoded in rows:
            cell = self._dirty.get(key)
            if cell is not None and cell.dirty == commit:
                cell.dirty = 0
                del self._dirty[key]
                if not encoded and key not in busy:
                    self.forget_empty(key)
        self._skip = 0

    def forget_empty(self, key: bytes) -> None:
        """Drop the key's cell if it is clean and holds no state. No hook may be using it.

        While nothing has been evicted, a key without a cell has no state, so the cell says nothing. Afterwards it
        saves a read of the row, and goes as others do.
        """
        cell = self._cells.get(key)
        if cell is not None and not (self.evicted or cell.dirty or cell.encoded):
            del self._cells[key]
            self.bytes_held -= len(key) + CELL_OVERHEAD

    def items(self) -> Iterator[tuple[bytes, KeyCell]]:
        """Every cell."""
        yield from self._cells.items()

    def evict(self, busy: Container[bytes], needed_at: Callable[[bytes], int | None]) -> int:
        """If over the limit, let go of clean cells down to nine tenths of it; returns how many went.

        First those that nothing is known to need and that have not been used of late, then those
        whose timers are farthest off, then the rest: a key that waits for its window's end is,
        however recently it was written, what will be read last (8.3).
        """
        if self.bytes_held <= self.limit_bytes:
            return 0
        if self._skip > 0:
            self._skip -= 1
            return 0
        # A look costs every cell: where it leaves too much, the next comes after a flush, or a while.
        self._skip = len(self._cells) // _LOOK
        excess = self.bytes_held - self.limit_bytes * 9 // 10
        candidates = [(key, cell) for key, cell in self._cells.items() if not cell.dirty and key not in busy]
        if not candidates:
            return 0
        recent = max(cell.used for _, cell in candidates)
        oldest = min(cell.used for _, cell in candidates)
        middle = (recent + oldest) // 2

        def rank(candidate: tuple[bytes, KeyCell]) -> tuple[int, int]:
            key, cell = candidate
            at = needed_at(key)
            if at is not None:
                return 1, -at
            return (0 if cell.used <= middle else 2), cell.used

        evicted = 0
        average = max(1, self.bytes_held // len(self._cells))
        for key, cell in heapq.nsmallest(max(1, excess // average), candidates, key=rank):
            del self._cells[key]
            self.bytes_held -= len(key) + len(cell.encoded) * _DECODED_FACTOR + CELL_OVERHEAD
            evicted += 1
        if self.bytes_held <= self.limit_bytes:
            self._skip = 0
        self.evicted = True
        return evicted
