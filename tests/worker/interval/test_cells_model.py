"""The cache of states against a naive model. A state that leaves the cache has a row, or is empty (8.3)."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millwheel.store.contract import StateRow
from millwheel.worker.interval.cache.cells import CELL_OVERHEAD_BYTES, PACKED_OVERHEAD_BYTES, CellCache, KeyCell
from millwheel.worker.interval.cache.eviction import evict_cells

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
BLOBS = st.sampled_from([b"", b"", b"x", b"yy"])


class Cells(RuleBasedStateMachine):
    """Keys are touched, changed, flushed, packed, evicted and forgotten in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = CellCache(2 * CELL_OVERHEAD_BYTES, evicted=False)
        self.truth: dict[bytes, bytes] = {}
        self.rows: dict[bytes, bytes] = {}
        self.busy: dict[bytes, KeyCell] = {}
        self.taken: list[KeyCell] = []
        self.flush: list[StateRow] = []
        self.commit = 0

    def _open(self, key: bytes) -> KeyCell:
        cell = self.cache.get(key)
        return self.cache.insert(key, self.rows.get(key, b"")) if cell is None else cell

    @rule(key=KEYS)
    def open(self, key: bytes) -> None:
        """A batch begins to use the key."""
        cell = self.busy.setdefault(key, self._open(key))
        assert cell.encoded == self.truth.get(key, b"")

    @rule(blob=BLOBS)
    def seal(self, blob: bytes) -> None:
        """The batch changes the cells that it uses, and is sealed."""
        self.commit += 1
        self.cache.changed([(key, blob) for key, cell in self.busy.items() if cell.encoded != blob], self.commit)
        self.truth.update(dict.fromkeys(self.busy, blob))
        for key in self.busy:
            self.cache.forget_empty(key)
        self.busy.clear()

    @rule()
    def capture(self) -> None:
        """Begin a write of rows."""
        if not self.flush:
            self.taken = self.cache.take_dirty()
            self.flush = self.cache.rows_of(self.taken)

    @rule()
    def written(self) -> None:
        """The rows are acknowledged."""
        self.rows.update((row.key, row.blob) for row in self.flush)
        self.cache.flushed(self.taken, self.flush, self.busy)
        self.taken = []
        self.flush = []

    @rule()
    def pack(self) -> None:
        """Pack what nothing uses."""
        self.cache.pack_clean(self.busy)

    @rule()
    def read(self) -> None:
        """Look at all states without using them. Nothing changes by that."""
        for key, cell in self.cache.items():
            seen = self.cache.peek(key)
            assert seen is not None
            assert (seen.encoded, seen.dirty) == (cell.encoded, cell.dirty)

    @rule()
    def evict(self) -> None:
        """Evict states, because memory is short."""
        evict_cells(self.cache, self.busy, lambda key: None)

    @invariant()
    def nothing_is_lost(self) -> None:
        """A key without a cell has the state of its row. Before the first eviction it has no state."""
        cells, packed = dict(self.cache.items()), dict(self.cache.packed())
        assert len(packed) == self.cache.packed_count
        assert self.cache.dirty_count == sum(cell.dirty > 0 for cell in cells.values())
        assert sorted(cells) == sorted(self.cache.keys())
        for key in self.truth.keys() - cells.keys():
            assert (self.rows.get(key, b"") if self.cache.evicted else b"") == self.truth[key]
        assert {key: cells[key] for key in self.busy} == self.busy, "a cell in use stays"
        for key in packed:
            assert not cells[key].dirty
            assert cells[key].encoded == self.rows.get(key, b""), "what is packed is in its row"
        assert self.cache.bytes_held == sum(packed.values()) + sum(
            len(key) + 3 * len(one.encoded) + CELL_OVERHEAD_BYTES for key, one in cells.items() if key not in packed
        )
        assert sum(packed.values()) == sum(len(key) + len(cells[key].encoded) + PACKED_OVERHEAD_BYTES for key in packed)


TestCells = Cells.TestCase
