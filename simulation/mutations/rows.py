"""State rows, which are written after the journal, and their cache (sections 6.1.2, 8.3; G2, G12)."""

from __future__ import annotations

from typing import Any

from millwheel.model import envelope
from millwheel.store.contract import StateRow
from millwheel.store.memory import MemoryStore
from millwheel.worker.interval.cache.cells import CellCache
from millwheel.worker.interval.commits.checkpoint import Checkpointer, StateRows
from simulation.mutations.base import mutation, replace

__all__: list[str] = []


@mutation("G12", "the truncation point passes an entry when the rows of its keys are acknowledged")
def floor_first() -> None:
    """The truncation point follows the base, even if rows are not acknowledged."""

    replace(StateRows, "acknowledged", lambda _: lambda self: self._journal.committed)


@mutation("G13", "the journal beyond the truncation point is kept short")
def endless_journals() -> None:
    """Intervals write no bases, so their truncation points stand still."""
    replace(Checkpointer, "_base_due", lambda _: lambda self: False)


@mutation("G12", "a changed state stays in memory until its row is acknowledged")
def unpinned_states() -> None:
    """The cache evicts states whose rows are not written yet."""

    def make(evict: Any) -> Any:
        def careless(self: CellCache, *arguments: Any) -> int:
            for cell in self._dirty.values():
                cell.dirty = 0
            evicted: int = evict(self, *arguments)
            return evicted

        return careless

    replace(CellCache, "evict", make)


@mutation("G12", "the cell of a key without state stays in memory until its empty row is acknowledged")
def hasty_forgetting() -> None:
    """A cell is removed as soon as it has no state."""

    def make(changed: Any) -> Any:
        def forgetting(self: CellCache, states: Any, commit: int) -> None:
            changed(self, states, commit)
            for key, encoded in states:
                if not encoded:
                    del self._cells[key]
                    self._dirty.pop(key, None)

        return forgetting

    replace(CellCache, "changed", make)


@mutation(
    "G3",
    "of two rows of a key the one of the later commit stands",
    seeds=15,
    test="tests/contracts/test_store_contract.py::test_a_childs_rows_stand_over_its_sealed_parents[memory]",
    why="a flush must be held up until its successor's has been acknowledged",
)
def last_row_wins() -> None:
    """A later write replaces a row, also with a smaller commit number.

    The fence ends flushes of deposed owners, so this mutation removes that check, too.
    """

    async def blindly(self: MemoryStore, incarnation: str, journal: str, sequencer: int, rows: list[StateRow]) -> None:
        self._states.setdefault(incarnation, {}).update({row.key: row for row in rows})

    replace(MemoryStore, "write_states", lambda _: blindly)


@mutation(
    "G2",
    "a stored value that is damaged is never decoded",
    seeds=0,
    test="tests/store/test_corruption.py::test_a_damaged_entry_is_named",
    why="its store damages nothing",
)
def unchecked_values() -> None:
    """Checksums of stored values are not verified."""
    replace(envelope, "crc32", lambda _: lambda payload: 0)
