"""What the product's stores and leases rely on. Only seeds with a real store's behaviour show these mutations."""

from __future__ import annotations

from millwheel.coordination.etcd import leases
from millwheel.store.cassandra import journals, states
from millwheel.store.cassandra.journals import Journals
from millwheel.store.writer import StoreThread
from simulation.mutations.base import mutation, rewriting

__all__: list[str] = []


def _change(texts: dict[str, str], names: tuple[str, ...], old: str, new: str) -> None:
    """Change a piece of the text of some statements; ValueError if one does not contain it exactly once."""
    for name in names:
        if texts[name].count(old) != 1:
            raise ValueError(f"statement {name} has {texts[name].count(old)} times, and not once: {old}")
        texts[name] = texts[name].replace(old, new)


@mutation("G3", "on Cassandra an append's transaction expects the head that its owner knows", seeds=300)
def appends_of_any_owner() -> None:
    """The transaction of an older sequencer is applied as well, even after other appends."""
    names = ("append", "append_parts")
    _change(journals.STATEMENTS, names, "IF sequencer = ? AND commit = ?", "IF sequencer >= ? AND commit >= ?")


@mutation(
    "G3",
    "on Cassandra a row's write time is its commit number",
    seeds=0,
    test="tests/simulation/test_cassandra_ways.py::test_the_later_commits_row_stands_for_any_clocks",
    why="a flush must be held up until its successor's has been acknowledged",
)
def rows_by_the_clock() -> None:
    """Of two writes of a row, the one with the larger clock time of its writer wins."""
    _change(states.STATEMENTS, ("write",), " USING TIMESTAMP ?", "")
    states.STATEMENTS["empty"] = states.STATEMENTS["write"]


rewriting(
    "remembered_part_lists",
    "G2",
    "on Cassandra a part list is written again after an append without an answer",
    Journals.append,
    "self._own.pop(journal, None)",
    "pass",
    seeds=0,
    test="tests/simulation/test_cassandra_ways.py::test_an_unanswered_part_list_is_replaced_by_the_next",
    why="all requests of a call must be without an answer, and the append after it must go back to the list before",
)

rewriting(
    "answers_before_the_sync",
    "G1",
    "the embedded store confirms what a sync has covered",
    StoreThread,
    "any(call.sync for call in group)",
    "False",
    seeds=300,
)


rewriting(
    "leases_by_the_steady_clock",
    "G3",
    "a lease is judged by a clock that counts suspension",
    leases.seconds_since_boot,
    "time.CLOCK_BOOTTIME",
    "time.CLOCK_MONOTONIC",
    seeds=300,
)
