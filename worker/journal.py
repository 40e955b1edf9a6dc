"""One owner's journal: its head, its appends and its counts (6.1.2; G12).

Intervals and logs share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from millwheel.store.contract import Append, JournalHead, PartId
from millwheel.worker.journal_base import JournalBase
from millwheel.worker.messages import AppendEntry, DeleteEntries, DeleteParts, OwnerEffect

__all__ = ["CommitCounts", "OwnedJournal"]


@dataclass(slots=True)
class CommitCounts:
    """Totals since the journal began. They are journaled with the commits that they count.

    A new count goes to the end of ``row``. A stored row may be shorter: an older version wrote it.
    """

    records: int = 0
    duplicates: int = 0
    late: int = 0
    dead_letters: int = 0
    dropped: int = 0
    """Late records that had no effect: of ``late=Late.DROP``, and those that a hook counted."""

    @property
    def row(self) -> tuple[int, int, int, int, int]:
        """The totals as a journal stores them. A log runs no hooks, and stores the first three."""
        return self.records, self.duplicates, self.late, self.dead_letters, self.dropped

    def add(self, records: int, duplicates: int, late: int, dead_letters: int = 0, dropped: int = 0) -> None:
        """Add the counts of one commit, or other totals."""
        self.records += records
        self.duplicates += duplicates
        self.late += late
        self.dead_letters += dead_letters
        self.dropped += dropped

    def since(self, before: CommitCounts) -> CommitCounts:
        """The difference from the earlier totals ``before``."""
        return CommitCounts(*(now - then for now, then in zip(self.row, before.row, strict=True)))


class OwnedJournal(JournalBase):
    """A journal's content as its owner knows it.

    Invariant: truncation point <= committed <= sealed. The truncation point moves only in an append, to a commit n for
    which both conditions hold. (a) All rows that changed up to n are acknowledged. (b) Base parts captured at n are
    acknowledged, and the same append names them. So an owner that stops in between leaves unnamed parts, and entries
    that the next takeover reads again. It never leaves a truncation point without its base.
    """

    def __init__(self, name: str, sequencer: int, deflates: bool) -> None:
        """``deflates``: whether the store may deflate entries."""
        super().__init__(name, sequencer)
        self._deflates = deflates
        self._early = crc32(name.encode()) & 0xFF
        """How much sooner than others the journal has a base, in parts of a 256th of a quarter."""
        self.sealed = 0
        """The newest commit number assigned to a batch."""
        self.truncation_point = 0
        self.entry_parts: dict[int, tuple[PartId, ...]] = {}
        """The parts of divided entries, by commit: entries above the truncation point, and the entry in flight."""
        self.counts = CommitCounts()
        self._inherited = CommitCounts()
        self._size = 0
        """The size of the entry in flight."""

    @property
    def all_committed(self) -> bool:
        """Whether each sealed commit is in the journal. Then the soft state is the committed state."""
        return self.sealed == self.committed

    @property
    def above(self) -> int:
        """The number of entries above the truncation point: those that a takeover reads."""
        return self.committed - self.truncation_point

    @property
    def counted(self) -> CommitCounts:
        """The totals since this owner took over."""
        return self.counts.since(self._inherited)

    # Takeover.

    def opened(self, head: JournalHead, entries: Sequence[bytes]) -> None:
        """The journal is fenced, and ``entries`` are those above its truncation point."""
        self.truncation_point, self.parts = head.truncation_point, head.parts
        self.sealed = self.committed = head.commit
        self.bytes = sum(map(len, entries))

    def restore_counts(self, counts: Iterable[int]) -> None:
        """Continue from the totals of the earlier owner."""
        self.counts = CommitCounts(*counts)
        self._inherited = CommitCounts(*self.counts.row)

    # Appends.

    def append(
        self, commit: int, entry: bytes, size: int, rows_upto: Callable[[], int], sync: bool = True
    ) -> AppendEntry:
        """Append the entry of a commit.

        Args:
            commit: Its number.
            entry: Its bytes.
            size: The bytes that a takeover reads for it: more than the entry, if the entry names parts or has runs of
                productions.
            rows_upto: Returns the newest commit up to which all changed rows are acknowledged.
            sync: Whether the store must have it on disk.
        """
        self._size = size
        if self._writing is not None or self._written is not None:
            self._name_base(rows_upto())
        point, parts = (self.truncation_point, self.parts) if self._named is None else self._named
        if self.entry_parts:
            parts = sum((each for number, each in self.entry_parts.items() if number > point), parts)
        return AppendEntry(self.name, Append(self.sequencer, commit, point, parts, entry, sync, self._deflates))

    def appended(self, commit: int) -> list[OwnerEffect]:
        """The entry is in the journal. If its append has named a base, returns the deletions of what is below it."""
        self.committed = commit
        self.bytes += self._size
        if self._named is None:
            return []
        point, parts = self._named
        gone = sorted({*self.parts, *self._collected}.difference(parts))
        self.truncation_point, self.parts, self._named, self._collected = point, parts, None, []
        for passed in [number for number in self.entry_parts if number <= point]:
            gone += self.entry_parts.pop(passed)
        effects: list[OwnerEffect] = [DeleteEntries(self.name, self.truncation_point + 1)]
        if gone:
            effects.append(DeleteParts(self.name, gone))
        return effects

    # Bases.

    def needs_base(self, entries: int, size: int) -> bool:
        """Whether so much is above the truncation point that a base is due, and one can be captured.

        Invariant: most journals with as many commits have their bases at different times. So the name takes up to a
        quarter off ``entries`` and ``size``. The journals of one record's way have a commit each for a batch. Were
        their bases due together, the records meanwhile would wait for all that these write and delete.
        """
        entries, size = (most - most // 64 * self._early // 16 for most in (entries, size))
        return (self.above >= entries or self.bytes >= size) and self.may_write_base()

    def may_write_base(self) -> bool:
        """Whether a base can be captured: none is on its way, and it would name parts of its own journal only."""
        return self.base_at_rest and not self.foreign and not self.pinned

    @property
    def base_at_rest(self) -> bool:
        """Whether no base is on its way."""
        return self._writing is None and self._written is None and self._named is None
