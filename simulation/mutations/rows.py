"""State rows, which are written after the journal, and their cache (sections 6.1.2, 8.3; G2, G12)."""

from __future__ import annotations

from millwheel.model import envelope
from millwheel.store.memory import MemoryStore
from millwheel.worker.interval.cache.cells import CellCache
from millwheel.worker.interval.commits.checkpoint import Checkpointer, StateRows
from millwheel.worker.interval.commits.commits import CommitPipeline
from millwheel.worker.interval.intake import IntervalIntake
from millwheel.worker.interval.panes.table import WindowPanes
from millwheel.worker.interval.pump import IntervalPump
from millwheel.worker.journal import OwnedJournal
from simulation.mutations.base import mutation, replace, rewrite, rewriting

__all__: list[str] = []

_CACHE = "tests/worker/interval/test_cells_model.py::TestCells"
_SLICES = "tests/worker/interval/test_rows.py::test_slices_follow_each_other_while_nothing_else_happens"


@mutation("G12", "the truncation point passes an entry when the rows of its keys are acknowledged")
def floor_first() -> None:
    """The truncation point follows the base, even if rows are not acknowledged."""
    rewrite(StateRows.acknowledged, "return self.upto", "return self._journal.committed")


@mutation("G13", "the journal beyond the truncation point is kept short")
def endless_journals() -> None:
    """Intervals write no bases, so their truncation points stand still."""
    rewrite(Checkpointer, "    if journal.needs_base(", "    return False\n    if journal.needs_base(")


rewriting(
    "bases_at_one_time",
    "G8",
    "journals with as many commits have their bases at different times",
    OwnedJournal.needs_base,
    "most - most // 64 * self._early // 16",
    "most",
    seeds=0,
    test="tests/worker/test_base_times.py::test_bases_of_one_records_way_are_apart",
    why="the simulator's journals have bases after a few entries",
)


@mutation("G12", "a changed state stays in memory until its row is acknowledged")
def unpinned_states() -> None:
    """The cache evicts states whose rows are not written yet."""
    drop = "    self.pages -= is_page_key(key)"
    rewrite(CellCache.evict, drop, f"    for cell in self._dirty:\n        cell.dirty = 0\n{drop}")


@mutation("G12", "the cell of a key without state stays in memory until its empty row is acknowledged")
def hasty_forgetting() -> None:
    """A cell is removed as soon as it has no state."""
    steps = "del self._states[cell.key]", "cell.dirty = 0", "more -= 1"
    remove = "\n            ".join(("if not encoded:", *steps))
    rewrite(CellCache.changed, "cell.dirty = commit", f"cell.dirty = commit\n        {remove}")


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
    checks = (
        "    if head is None or head.sequencer != sequencer or not rows:\n"
        "        return\n"
        "    rules.check_rows(journal, head, rows)\n"
        "    states = self.states.setdefault(incarnation, {})\n"
    )
    blindly = "    self.states.setdefault(incarnation, {}).update({row.key: row for row in rows})\n    return\n"
    rewrite(MemoryStore.write_states, checks, blindly)


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


rewriting(
    "pinned-states-packed",
    "G12",
    "only clean states are packed, so that they may be evicted",
    CellCache.pack_clean,
    "if not cell.dirty and",
    "if",
    seeds=0,
    test=_CACHE,
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "older-rows-count",
    "G12",
    "a state is clean when the row of its newest change is acknowledged",
    CellCache.flushed,
    "if cell.dirty != row.commit:",
    "if False:",
    seeds=0,
    test="tests/worker/interval/test_rows.py::test_a_key_that_changes_between_slices_is_written_again",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "slices-copy-the-rest",
    "G8",
    "a slice of rows takes as long as its own rows, however many follow",
    StateRows.capture,
    "first, self._next = self._next, self._next + self._most",
    "self._taken, first, self._next = self._taken[self._next :], 0, self._most",
    seeds=0,
    test="tests/worker/interval/test_rows.py::test_a_slice_takes_no_longer_if_more_rows_follow",
    why="no seed has so many rows that time would show it",
)

rewriting(
    "rows-settled-by-chance",
    "G8",
    "rows that were written are settled slice by slice without another event",
    CommitPipeline.next_alarm,
    "if self.checkpoints.rows.settling:",
    "if False:",
    seeds=0,
    test=_SLICES,
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "groups-regardless-of-order",
    "G5",
    "records that return to the queue together keep the order of their keys",
    IntervalIntake.requeue,
    "if place < last.get(key, 0):",
    "if place < 0:",
    seeds=0,
    test="tests/worker/interval/test_packed_states.py::test_returning_records_are_grouped_and_keep_their_order",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "groups-unsorted",
    "G1",
    "records that return to the queue together are in the order of their delivery",
    IntervalIntake.requeue,
    "indexes.sort()",
    "pass",
    seeds=0,
    test="tests/worker/interval/test_packed_states.py::test_returning_records_are_added_with_their_own_values",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "evictions-between-slices",
    "G13",
    "no state is evicted while rows that were written are settled: that makes room first",
    IntervalPump.work,
    "not checkpoints.rows.settling and state.cells",
    "state.cells",
    seeds=0,
    test="tests/worker/interval/test_packed_states.py::test_states_that_fit_when_packed_are_not_evicted",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "states-regardless-of-panes",
    "G13",
    "states and panes by columns share one limit of memory",
    CellCache,
    "self._limit_bytes - self._beside()",
    "self._limit_bytes",
    seeds=0,
    test="tests/worker/interval/test_packed_states.py::test_states_leave_room_for_panes",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "lengths-of-keys-uncounted",
    "G13",
    "panes by columns count the lengths of their keys",
    WindowPanes,
    "self.key_bytes += sum(map(len, keys))",
    "pass",
    seeds=0,
    test="tests/worker/interval/test_packed_states.py::test_the_lengths_of_keys_count_as_memory_of_panes",
    why="seeds were not tried: the test shows it by itself, in seconds",
)
