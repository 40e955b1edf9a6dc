"""Entries that are larger than one append: their parts are written first, and deleted last (section 6.1.2)."""

from __future__ import annotations

from typing import Any

from millwheel.store import journal_rules
from millwheel.store.contract import PartId
from millwheel.worker.interval.commits.commits import CommitPipeline
from millwheel.worker.interval.commits.divided import is_entry_part
from millwheel.worker.journal import OwnedJournal
from millwheel.worker.messages import DeleteParts
from millwheel.worker.process import opening
from simulation.mutations.base import mutation, replace, rewrite

__all__: list[str] = []


@mutation("G2", "a divided entry is appended when its parts are acknowledged")
def appended_before_its_parts() -> None:
    """The append is sent together with the parts, and may arrive before them."""
    write = "self._divided.write(sealed.commit, blob, size)"
    rewrite(CommitPipeline, f"[{write}]", f"[write := {write}, *self.parts_written(write.number)]")


@mutation("G12", "the head names the parts of all divided entries above the truncation point")
def earlier_parts_unnamed() -> None:
    """An append names only the parts of its own entry. The next owner deletes those of earlier entries."""

    def make(append: Any) -> Any:
        def short(self: OwnedJournal, commit: int, *arguments: Any) -> Any:
            named = self.entry_parts
            for number in [number for number in named if number != commit]:
                del named[number]
            return append(self, commit, *arguments)

        return short

    replace(OwnedJournal, "append", make)


@mutation("G12", "the parts of a divided entry are kept until the truncation point has passed it")
def parts_collected_early() -> None:
    """The parts of an entry are deleted, and no longer named, when the next entry is appended."""

    def make(appended: Any) -> Any:
        def early(self: OwnedJournal, commit: int) -> list[Any]:
            out: list[Any] = appended(self, commit)
            older: list[PartId] = []
            for passed in [passed for passed in self.entry_parts if passed < commit - 1]:
                older += self.entry_parts.pop(passed)
            return [*out, DeleteParts(self.name, older)] if older else out

        return early

    replace(OwnedJournal, "appended", make)
    # The head names them until the next append, so the store's own check would refuse the deletion.
    replace(journal_rules, "check_unnamed", lambda _: lambda journal, head, parts: None)


@mutation(
    "G11",
    "a child whose head names parts of entries, and no base, reads its parents' journals",
    seeds=15,
    test="tests/worker/test_handover.py::test_a_child_whose_head_names_no_base_reads_its_parents",
    why="a child must be taken over between its first entry, which is divided, and its first base",
)
def children_without_parents() -> None:
    """Any part that the head of a child names counts as its base."""
    replace(opening, "names_base", lambda _: lambda parts: bool(parts))


@mutation(
    "G13",
    "the parts of an entry go when the truncation point has passed it",
    seeds=0,
    test="tests/worker/interval/test_large_commits.py::test_an_entrys_parts_are_deleted_after_its_truncation",
    why="its owners change often, and each deletes what the one before it has left",
)
def parts_kept_for_ever() -> None:
    """The parts of entries are never deleted, and stay named."""

    def make(appended: Any) -> Any:
        def keeping(self: OwnedJournal, commit: int) -> list[Any]:
            kept = dict(self.entry_parts)
            out = [one for one in appended(self, commit) if not _deletes_entry_parts(one)]
            self.entry_parts = kept
            return out

        return keeping

    replace(OwnedJournal, "appended", make)


def _deletes_entry_parts(effect: Any) -> bool:
    return isinstance(effect, DeleteParts) and any(map(is_entry_part, effect.parts))
