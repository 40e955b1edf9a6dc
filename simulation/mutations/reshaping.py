"""Splits and merges: sealed journals, the children's initial state, and the coverage of keys (section 7.1; G11)."""

from __future__ import annotations

import dataclasses
from typing import Any

from millwheel.model.keys import KeyInterval
from millwheel.store import journal_rules
from millwheel.store.contract import JournalHead, SequencerRefusedError
from millwheel.worker.dedup import dedup
from millwheel.worker.interval import recovery
from millwheel.worker.interval.core import IntervalCore
from millwheel.worker.process.opening import Opener
from simulation.mutations.base import mutation, replace, rewrite

__all__: list[str] = []


@mutation("G12", "a child's commits are numbered from its parents' on")
def commits_restart() -> None:
    """A child's journal starts at commit 0."""

    def make(created: Any) -> Any:
        return lambda journal, held, commit: created(journal, held, 0)

    replace(journal_rules, "created", make)


@mutation("G11", "a parent is sealed by a value that no sequencer exceeds")
def sealed_by_a_sequencer() -> None:
    """A parent is sealed as if its child were its next owner."""

    def sealed(journal: str, held: JournalHead | None, sequencer: int) -> JournalHead:
        head = journal_rules.present(journal, held)
        if head.sequencer > sequencer:
            raise SequencerRefusedError(journal, head.sequencer, head.commit)
        return dataclasses.replace(head, sequencer=sequencer)

    replace(journal_rules, "sealed", lambda _: sealed)


@mutation(
    "G11",
    "a parent is sealed before its children read it",
    seeds=10,
    test="tests/contracts/test_store_contract.py::test_a_sealed_journal_takes_no_owner_and_no_entry[memory]",
    why="the coordinator notifies a parent's owner of the split, too",
)
def unsealed_parents() -> None:
    """Children read a journal to which its owner still appends."""
    replace(journal_rules, "sealed", lambda _: lambda journal, held, sequencer: journal_rules.present(journal, held))


@mutation("G11", "who opens a child seals its parents")
def children_first() -> None:
    """An owner creates and opens a child's journal without sealing its parents' journals."""
    rewrite(Opener, "self._store.seal(parent.journal, self._fence.sequencer)", "self._store.read_head(parent.journal)")


@mutation("G11", "the parts of a split cover all keys between them")
def lost_key() -> None:
    """The key at which an interval is split belongs to neither part."""

    def make(split: Any) -> Any:
        def gaping(self: KeyInterval, at: bytes) -> tuple[KeyInterval, KeyInterval]:
            lower, upper = split(self, at)
            return lower, KeyInterval(at + b"\0", upper.end)

        return gaping

    replace(KeyInterval, "split", make)


@mutation("G1", "the children of a split know the ids that their parent knew")
def ids_lost_at_splits() -> None:
    """A child knows no ids."""
    replace(dedup, "inherit", lambda _: lambda tables, parents: None)


@mutation(
    "G1",
    "the child of a merge knows the ids of both parents",
    seeds=10,
    test="tests/worker/dedup/test_simulation.py::test_every_record_takes_effect_once_in_any_history",
    why="few of its runs get as far as a merge",
)
def ids_of_one_parent() -> None:
    """A child knows only the ids of its first parent."""
    replace(dedup, "inherit", lambda inherit: lambda tables, parents: inherit(tables, parents[:1]))


@mutation(
    "G7",
    "the child of a merge starts at the smaller watermark of its parents",
    seeds=10,
    test="tests/worker/interval/test_key_watermark_bounds.py::test_a_merged_key_sees_the_watermark_its_parent_would_show",
    why="few of its runs get as far as a merge",
)
def larger_parents_watermark() -> None:
    """A child starts at the largest watermark of its parents."""
    rewrite(recovery, "min(whole.watermark for whole in wholes)", "max(whole.watermark for whole in wholes)")


@mutation(
    "G7",
    "keys of a merged interval are shown no less than before",
    seeds=10,
    test="tests/worker/interval/test_key_watermark_bounds.py::test_a_merged_key_sees_the_watermark_its_parent_would_show",
    why="few of its runs get as far as a merge",
)
def forgotten_floors() -> None:
    """The watermarks that keys had seen before a merge are dropped."""
    rewrite(recovery, "child.key_bounds += shown.within(keys)", "pass")


@mutation("G11", "parents' journals stay until their children need nothing of them")
def parents_let_go() -> None:
    """A child reports at once that it needs nothing from its parents."""
    replace(IntervalCore, "independent", lambda _: property(lambda self: True))


@mutation(
    "G1",
    "each production of a parent is sent again by one of its children",
    seeds=10,
    test="tests/worker/interval/test_letting_go.py::test_children_share_what_the_parent_sent_by_producing_key",
    why="an owner whose productions are not ACKed must be split",
)
def productions_of_parents_lost() -> None:
    """Children read their parents' journals without the productions."""
    rewrite(recovery, "if self._keys is not None and producer not in self._keys:", "if self._keys is not None:")


@mutation("G12", "a child reads the rows that its parents had not flushed from their entries")
def entries_of_parents_unread() -> None:
    """Children start from their parents' bases, without the states of the later entries."""
    rewrite(recovery, "[row for row in entry.states if row_owner(row[0]) in keys]", "[]")
