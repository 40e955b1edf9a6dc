"""The cache of one interval's key states and of their pages, with a size limit (section 8.3).

A state in the cache is in a *cell* or *packed*. A cell is an object with the decoded state. A packed state is its
encoding alone, in less than half of the memory. A state gets a cell when a hook uses it. It is packed when its row has
been acknowledged and nothing uses it, if the cache is over half of its limit. Below, that would only cost time.

A cell is *dirty* while its latest commit has not reached its state row. A dirty cell is pinned, because only the
journal also has that state. What is clean may be packed or evicted. Its row then has the state, so a cache miss may
trust the row.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Final

from millwheel.model.page_keys import is_page_key
from millwheel.sdk.compiling import mypyc_attr
from millwheel.sdk.scope import StateCell
from millwheel.store.contract import StateRow

__all__ = ["CELL_OVERHEAD_BYTES", "DECODED_FACTOR", "PACKED_OVERHEAD_BYTES", "CellCache", "KeyCell"]

CELL_OVERHEAD_BYTES: Final = 280
"""Bytes counted for a cell besides its state: slots of a dict and of a list, key, the object, a small decoded state."""

DECODED_FACTOR: Final = 3
"""A decoded state counts as this multiple of its encoded size, with the encoded bytes."""

PACKED_OVERHEAD_BYTES: Final = 170
"""Bytes counted for a packed state besides key and encoding: a slot of a dict, and the headers of two objects."""

_SPARED: Final = CELL_OVERHEAD_BYTES - PACKED_OVERHEAD_BYTES


@mypyc_attr(acyclic=True)
class KeyCell(StateCell):
    """The state of one key.

    ``dirty`` is the newest sealed commit that changed it while its row is behind, else 0. ``used`` is the number of the
    batch that used it last.
    """

    __slots__ = ("dirty", "key", "used")

    def __init__(self, key: bytes, encoded: bytes = b"") -> None:
        super().__init__(encoded)
        self.key = key
        self.dirty = 0
        self.used = 0


class CellCache:
    """The states of one interval that are in memory.

    Invariant: the state of a key that is not in the cache is exactly its row. While ``evicted`` is False, every row of
    this interval is also in the cache. So a key that is not there then has no state.

    Invariant: a packed state is clean. A hook keeps the cell of its key until its commit is sealed, so the cells of
    busy keys are neither packed nor evicted.

    A cold look-up in a large dict takes as long as a hook. So there is one dict, and each step of a state's way makes
    one such look-up at most.

    It has many methods: the steps of that way.
    """

    def __init__(self, limit_bytes: int, evicted: bool, beside: Callable[[], int] = int) -> None:
        """
        Args:
            limit_bytes: The limit of the states and of what is beside them.
            evicted: Whether some rows may not be in the cache.
            beside: The bytes of what shares the limit. The default is 0.
        """
        self._limit_bytes = limit_bytes
        self._beside = beside
        self.evicted = evicted
        self.bytes_held = 0
        self._states: dict[bytes, KeyCell | bytes] = {}
        """Cells and packed states. Once a state was evicted, what is packed goes to the end, so this is the order of
        eviction. Before, it stays in its place: a dict that has moved all of its items is built again."""
        self.packed_count = 0
        """How many are packed."""
        self._packed_bytes = 0
        """Their part of ``bytes_held``."""
        self._dirty: list[KeyCell] = []
        """The dirty cells whose rows are not on their way."""
        self.dirty_count = 0
        """The number of all dirty cells, which are pinned."""
        self.skip_evictions = 0
        """Number of evictions to skip before all states are examined again."""
        self.pages = 0
        """How many of the states are pages of growing states."""

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, key: bytes) -> bool:
        return key in self._states

    @property
    def limit_bytes(self) -> int:
        """What the states may take: what is left beside panes by columns, and at least a quarter of all.

        Panes cannot be evicted, so states leave memory in their place (G13). With less than a quarter, each hook would
        read a row.
        """
        return max(self._limit_bytes - self._beside(), self._limit_bytes // 4)

    @property
    def bytes_pinned(self) -> int:
        """Approximate size of the pinned cells: their share of all cells."""
        cells = len(self._states) - self.packed_count
        return (self.bytes_held - self._packed_bytes) * self.dirty_count // max(1, cells)

    @property
    def needs_flush(self) -> bool:
        """Whether the cache is over its limit, in large part with pinned cells. Then their rows must be flushed now."""
        return self.bytes_held > self.limit_bytes and 2 * self.bytes_pinned > self.limit_bytes

    @property
    def overfull(self) -> bool:
        """Whether pinned cells alone exceed the limit. Then only work that cannot wait may run (G13)."""
        return self.bytes_held > self.limit_bytes and self.bytes_pinned > self.limit_bytes

    def get(self, key: bytes) -> KeyCell | None:
        """The key's cell. None: its row must be read first and passed to ``insert``."""
        state = self._states.get(key)
        if isinstance(state, KeyCell):
            return state
        if state is not None:
            return self._unpack(key, state)
        if self.evicted:
            return None
        return self.insert(key, b"")

    def find(self, key: bytes) -> KeyCell | None:
        """The key's cell, if its state is in the cache."""
        state = self._states.get(key)
        return self._unpack(key, state) if isinstance(state, bytes) else state

    def peek(self, key: bytes) -> KeyCell | None:
        """As ``find``, to read what is sealed. It may be a copy, so the caller must not change it."""
        state = self._states.get(key)
        return KeyCell(key, state) if isinstance(state, bytes) else state

    def insert(self, key: bytes, encoded: bytes) -> KeyCell:
        """Add a cell for a key that is not in the cache, with the state of its row."""
        cell = KeyCell(key, encoded)
        self._states[key] = cell
        self.pages += is_page_key(key)
        self.bytes_held += len(key) + len(encoded) * DECODED_FACTOR + CELL_OVERHEAD_BYTES
        return cell

    def changed(self, states: list[tuple[bytes, bytes]], commit: int, known: list[KeyCell] | None = None) -> None:
        """Store the encoded states of commit ``commit``. Their rows are behind now.

        A page that is new, or that is deleted without having been read, has no cell yet. Nor has a key in a takeover.

        Args:
            states: By key.
            commit: Its number.
            known: The cells of the first of them, in their order, as the hooks' contexts have them.
        """
        dirty, find, cells = self._dirty, self.find, known or []
        if len(cells) < len(states):
            cells = [*cells, *(find(key) or self.insert(key, b"") for key, _ in states[len(cells) :])]
        assert len(cells) == len(states), "each known cell is that of a changed state"
        grown = more = 0
        for (_, encoded), cell in zip(states, cells):  # noqa: B905 - compiled, a strict zip() is slow
            grown += len(encoded) - len(cell.encoded)
            cell.encoded = encoded
            if not cell.dirty:
                dirty.append(cell)
                more += 1
            cell.dirty = commit
        self.dirty_count += more
        self.bytes_held += grown * DECODED_FACTOR

    # Rows.

    def take_dirty(self) -> list[KeyCell]:
        """Take the dirty cells, whose rows are to be written. ``flushed`` must get a row of each."""
        taken, self._dirty = self._dirty, []
        return taken

    @staticmethod
    def rows_of(cells: Iterable[KeyCell]) -> list[StateRow]:
        """The rows of dirty cells. Call it only while no sealed commit is in flight."""
        return [StateRow(cell.key, cell.dirty, cell.encoded) for cell in cells]

    def flushed(self, cells: Sequence[KeyCell], rows: Sequence[StateRow], busy: Container[bytes] = ()) -> None:
        """Mark rows as acknowledged. Unchanged states are clean, and may be packed, or dropped if they are empty.

        Args:
            cells: The cells of the rows. Dirty cells are pinned, so they are those of the cache, without a look-up.
            rows: What was written of them.
            busy: The keys whose cells are in use and stay.
        """
        assert len(cells) == len(rows), "each row is that of a cell"
        half = self.limit_bytes // 2
        for cell, row in zip(cells, rows):  # noqa: B905 - compiled, a strict zip() is slow
            if cell.dirty != row.commit:
                self._dirty.append(cell)
                continue
            cell.dirty = 0
            self.dirty_count -= 1
            if row.blob or self.evicted:
                if self.bytes_held > half and cell.key not in busy:
                    if self.evicted:
                        del self._states[cell.key]  # it goes to the end
                    self._pack(cell)
            elif cell.key not in busy:
                self.forget_empty(cell.key)
        self.skip_evictions = 0

    def forget_empty(self, key: bytes) -> None:
        """Drop the key's cell if it is clean and holds no state. No hook may be using it.

        While nothing has been evicted, a key without a cell has no state, so such a cell is redundant. Afterwards the
        cell saves a read of the row, and is evicted like others.
        """
        cell = self._states.get(key)
        if isinstance(cell, KeyCell) and not (self.evicted or cell.dirty or cell.encoded):
            del self._states[key]
            self.pages -= is_page_key(key)
            self.bytes_held -= len(key) + CELL_OVERHEAD_BYTES

    # What nothing uses.

    def pack_clean(self, busy: Container[bytes]) -> None:
        """Pack all clean cells that are not in use, those first that were not used for longest."""
        cells = (cell for cell in self._states.values() if isinstance(cell, KeyCell))
        for cell in sorted((cell for cell in cells if not cell.dirty and cell.key not in busy), key=_last_use):
            del self._states[cell.key]  # it goes to the end
            self._pack(cell)

    def _pack(self, cell: KeyCell) -> None:
        key, encoded = cell.key, cell.encoded
        self._states[key] = encoded
        self.bytes_held -= _SPARED + (DECODED_FACTOR - 1) * len(encoded)
        self.packed_count += 1
        self._packed_bytes += len(key) + len(encoded) + PACKED_OVERHEAD_BYTES

    def _unpack(self, key: bytes, encoded: bytes) -> KeyCell:
        self._states[key] = cell = KeyCell(key, encoded)
        self.bytes_held += _SPARED + (DECODED_FACTOR - 1) * len(encoded)
        self.packed_count -= 1
        self._packed_bytes -= len(key) + len(encoded) + PACKED_OVERHEAD_BYTES
        return cell

    def evict(self, key: bytes) -> None:
        """Drop a clean state. Its row has it."""
        state = self._states.pop(key)
        self.pages -= is_page_key(key)
        if isinstance(state, KeyCell):
            self.bytes_held -= len(key) + len(state.encoded) * DECODED_FACTOR + CELL_OVERHEAD_BYTES
        else:
            size = len(key) + len(state) + PACKED_OVERHEAD_BYTES
            self.bytes_held -= size
            self.packed_count -= 1
            self._packed_bytes -= size
        self.evicted = True

    def packed(self) -> Iterator[tuple[bytes, int]]:
        """The packed states in the order of eviction: key, and the bytes that are counted for it."""
        for key, state in self._states.items():
            if isinstance(state, bytes):
                yield key, len(key) + len(state) + PACKED_OVERHEAD_BYTES

    def keys(self) -> list[bytes]:
        """The keys of all states."""
        return list(self._states)

    def items(self) -> Iterator[tuple[bytes, KeyCell]]:
        """Every state, as ``peek`` returns it."""
        for key, state in self._states.items():
            yield key, KeyCell(key, state) if isinstance(state, bytes) else state


def _last_use(cell: KeyCell) -> int:
    return cell.used
