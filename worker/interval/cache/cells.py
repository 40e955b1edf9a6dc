"""The cache of one interval's key states and of their pages, with a size limit (section 8.3).

A cell is *dirty* while its latest commit has not reached its state row. A dirty cell is pinned, because only the
journal also has that state. A clean cell may be evicted. Its row then has the state, so a cache miss may trust the row.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

from millwheel.model.page_keys import is_page_key
from millwheel.sdk.scope import StateCell
from millwheel.store.contract import StateRow

__all__ = ["CELL_OVERHEAD_BYTES", "DECODED_FACTOR", "CellCache", "FlushTimes", "KeyCell"]

CELL_OVERHEAD_BYTES: Final = 400
"""Bytes counted for a cell besides its state: dict slots, key, the cell object, a small decoded state."""

DECODED_FACTOR: Final = 3
"""A decoded state counts as this multiple of its encoded size, with the encoded bytes."""


class KeyCell(StateCell):
    """The state of one key.

    ``dirty`` is the newest sealed commit that changed it while its row is behind, else 0. ``used`` is the number of the
    batch that used it last.
    """

    __slots__ = ("dirty", "used")

    def __init__(self, encoded: bytes = b"") -> None:
        super().__init__(encoded)
        self.dirty = 0
        self.used = 0


class FlushTimes:
    """When the rows of dirty cells are written, if nothing waits for them. Times are those of ``elapsed``.

    Many rows are written sooner: a move to a successor must write all of them first.
    """

    def __init__(self, interval: int, apart: int, many: int) -> None:
        """``interval``: how long rows wait, in microseconds. ``apart``: how long ``many`` rows or more wait."""
        self._interval = interval
        self._apart = apart
        self._many = many
        self.restart(0)

    def restart(self, now: int) -> None:
        """Rows are behind from ``now`` on."""
        self._at = now + self._interval
        self._many_at = min(self._at, now + self._apart)

    def due_at(self, rows: int) -> int:
        """When so many rows are written."""
        return self._many_at if rows >= self._many else self._at


class CellCache:
    """The cells of one interval.

    Invariant: the state of a key without a cell is exactly its row. While ``evicted`` is False, every row of this
    interval also has a cell. So a key without a cell then has no state.
    """

    def __init__(self, limit_bytes: int, evicted: bool) -> None:
        self.limit_bytes = limit_bytes
        self.evicted = evicted
        self.bytes_held = 0
        self._cells: dict[bytes, KeyCell] = {}
        self._dirty: dict[bytes, KeyCell] = {}
        self.skip_evictions = 0
        """Number of evictions to skip before all cells are examined again."""
        self.pages = 0
        """How many of the cells are pages of growing states."""

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, key: bytes) -> bool:
        return key in self._cells

    @property
    def dirty_count(self) -> int:
        """The number of pinned cells."""
        return len(self._dirty)

    @property
    def bytes_pinned(self) -> int:
        """Approximate size of the pinned cells: their share of the total."""
        return self.bytes_held * len(self._dirty) // max(1, len(self._cells))

    @property
    def needs_flush(self) -> bool:
        """Whether the cache is over its limit, in large part with pinned cells. Then their rows must be flushed now."""
        return self.bytes_held > self.limit_bytes and 2 * self.bytes_pinned > self.limit_bytes

    @property
    def overfull(self) -> bool:
        """Whether pinned cells alone exceed the limit. Then only work that cannot wait may run (G13)."""
        return self.bytes_held > self.limit_bytes and self.bytes_pinned > self.limit_bytes

    def cached(self) -> Mapping[bytes, KeyCell]:
        """The cells by key, for fast lookups. For a key that is missing here, call ``get``."""
        return self._cells

    def get(self, key: bytes) -> KeyCell | None:
        """The key's cell. None: its row must be read first and passed to ``insert``."""
        cell = self._cells.get(key)
        if cell is not None:
            return cell
        if self.evicted:
            return None
        return self.insert(key, b"")

    def insert(self, key: bytes, encoded: bytes) -> KeyCell:
        """Add a cell for a key that has none, with the state of its row."""
        cell = KeyCell(encoded)
        self._cells[key] = cell
        self.pages += is_page_key(key)
        self.bytes_held += len(key) + len(encoded) * DECODED_FACTOR + CELL_OVERHEAD_BYTES
        return cell

    def changed(self, states: Sequence[tuple[bytes, bytes]], commit: int, known: Sequence[KeyCell] = ()) -> None:
        """Store the encoded states of commit ``commit``. Their rows are behind now.

        A page that is new, or that is deleted without having been read, has no cell yet.

        Args:
            states: By key.
            commit: Its number.
            known: The cells of the first of them, in their order, as the hooks' contexts have them.
        """
        dirty, found = self._dirty, self._cells.get
        cells = [*known, *(found(key) or self.insert(key, b"") for key, _ in states[len(known) :])]
        grown = 0
        for (key, encoded), cell in zip(states, cells, strict=True):
            grown += len(encoded) - len(cell.encoded)
            cell.encoded = encoded
            if not cell.dirty:
                dirty[key] = cell
            cell.dirty = commit
        self.bytes_held += grown * DECODED_FACTOR

    def dirty_keys(self) -> list[bytes]:
        """The keys of the pinned cells."""
        return list(self._dirty)

    def dirty_rows(self, keys: Iterable[bytes]) -> list[StateRow]:
        """The rows of these keys, whose cells are pinned. Call it only while no sealed commit is in flight."""
        dirty = self._dirty
        rows: list[StateRow] = []
        for key in keys:
            cell = dirty[key]
            rows.append(StateRow(key, cell.dirty, cell.encoded))
        return rows

    def flushed(self, rows: Iterable[StateRow], busy: Container[bytes] = ()) -> None:
        """Mark flushed rows as acknowledged. Cells unchanged since are clean, and are dropped if they hold no state.

        The cells of ``busy`` keys are in use and stay.
        """
        dirty = self._dirty
        for row in rows:
            key = row.key
            cell = dirty.get(key)
            if cell is not None and cell.dirty == row.commit:
                cell.dirty = 0
                del dirty[key]
                if not row.blob and key not in busy:
                    self.forget_empty(key)
        self.skip_evictions = 0

    def forget_empty(self, key: bytes) -> None:
        """Drop the key's cell if it is clean and holds no state. No hook may be using it.

        While nothing has been evicted, a key without a cell has no state, so such a cell is redundant. Afterwards the
        cell saves a read of the row, and is evicted like others.
        """
        cell = self._cells.get(key)
        if cell is not None and not (self.evicted or cell.dirty or cell.encoded):
            del self._cells[key]
            self.pages -= is_page_key(key)
            self.bytes_held -= len(key) + CELL_OVERHEAD_BYTES

    def evict(self, key: bytes) -> None:
        """Drop a clean cell. Its row has the state."""
        self.pages -= is_page_key(key)
        self.bytes_held -= len(key) + len(self._cells.pop(key).encoded) * DECODED_FACTOR + CELL_OVERHEAD_BYTES
        self.evicted = True

    def items(self) -> Iterator[tuple[bytes, KeyCell]]:
        """Every cell."""
        yield from self._cells.items()
