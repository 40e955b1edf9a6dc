"""One owner's journal: its head, its appends, and the base on its way into the head (6.1.2; G12).

Intervals and logs share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from millwheel.store.contract import Append, JournalHead, PartId
from millwheel.worker.commit_counts import CommitCounts
from millwheel.worker.dedup import DedupSnapshot
from millwheel.worker.messages import AppendEntry, DeleteEntries, DeleteParts, OwnerEffect, WriteParts

__all__ = ["DEDUP_PART", "OwnedJournal"]

DEDUP_PART: Final = "dedup"
"""The kind of base part that holds the ids in memory, and the names of the segments."""


class OwnedJournal:
    """A journal's content as its owner knows it.

    Invariant: truncation point <= committed <= sealed. The truncation point moves only in an append, to a commit n for
    which both conditions hold. (a) All rows that changed up to n are acknowledged. (b) Base parts captured at n are
    acknowledged, and the same append names them. So an owner that stops in between leaves unnamed parts, and entries
    that the next takeover reads again. It never leaves a truncation point without its base.

    A base is on its way from ``write_base`` until ``appended`` of the append that names it. One is on its way at a
    time. Bases are captured only while no sealed commit is in flight, so they show committed state only.

    It has many attributes: those of the head, of the append in flight, and of the base on its way.
    """

    def __init__(self, name: str, sequencer: int) -> None:
        self.name = name
        self.sequencer = sequencer
        self.sealed = 0
        """The newest commit number assigned to a batch."""
        self.committed = 0
        self.truncation_point = 0
        self.parts: tuple[PartId, ...] = ()
        """The parts of the base that the head names. Empty before the first base."""
        self.entry_parts: dict[int, tuple[PartId, ...]] = {}
        """The parts of divided entries, by commit: entries above the truncation point, and the entry in flight."""
        self.segments: dict[str, tuple[PartId, ...]] = {}
        """Stored id segments of the duplicate check, by name."""
        self.foreign: dict[str, str] = {}
        """The segments whose parts are still in a parent's journal, each with that journal."""
        self.counts = CommitCounts()
        self._inherited = CommitCounts()
        self.bytes = 0
        """Approximate size of the entries above the newest base."""
        self._size = 0
        """The size of the entry in flight."""
        self._number = 0
        """The number of the last base."""
        self._writing: tuple[int, tuple[PartId, ...]] | None = None
        """The base whose parts are being written: the commit that it shows, and its parts."""
        self._written: tuple[int, tuple[PartId, ...]] | None = None
        """The newest acknowledged base that no append has named."""
        self._named: tuple[int, tuple[PartId, ...]] | None = None
        """The base that the append in flight names."""
        self._collected: list[PartId] = []
        """Parts of collected id segments. They are deleted with the next base."""

    @property
    def still(self) -> bool:
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
            size: The bytes that a takeover reads for it: more than the entry, if the entry names parts.
            rows_upto: Returns the newest commit up to which all changed rows are acknowledged.
            sync: Whether the store must have it on disk.
        """
        self._size = size
        if self._writing is not None or self._written is not None:
            self._name_base(rows_upto())
        point, parts = (self.truncation_point, self.parts) if self._named is None else self._named
        if self.entry_parts:
            parts = sum((each for number, each in self.entry_parts.items() if number > point), parts)
        return AppendEntry(self.name, Append(self.sequencer, commit, point, parts, entry, sync))

    def _name_base(self, rows_upto: int) -> None:
        if self.wants_append(rows_upto):
            self._named, self._written = self._written, None

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
        """Whether so much is above the truncation point that a base is due, and one can be captured."""
        return (self.above >= entries or self.bytes >= size) and self.may_write_base()

    def may_write_base(self) -> bool:
        """Whether a base can be captured: none is on its way, and it would name parts of its own journal only."""
        return self.base_at_rest and not self.foreign

    @property
    def base_at_rest(self) -> bool:
        """Whether no base is on its way."""
        return self._writing is None and self._written is None and self._named is None

    def write_base(
        self, blobs: dict[str, bytes], ids: DedupSnapshot, more: dict[PartId, bytes], kept: Iterable[PartId]
    ) -> WriteParts:
        """Write a base that shows the last commit.

        Args:
            blobs: Its parts by name.
            ids: The ids, as of the same commit. Stored segments that it does not name are collected.
            more: Further parts of it, which have ids already.
            kept: Parts of earlier bases that stay valid.
        """
        blobs = blobs | {f"{DEDUP_PART}/{number}": blob for number, blob in enumerate(ids.blobs)}
        parts = {PartId(name, self.sequencer, self.committed): blob for name, blob in blobs.items()} | more
        relied = set(ids.segments)
        for name in [name for name in self.segments if name not in relied]:
            self._collected += self.segments.pop(name)
        segments = [part for name in ids.segments for part in self.segments[name]]
        self._number += 1
        self._writing = self.committed, tuple(sorted([*parts, *kept, *segments]))
        self.bytes = 0
        return WriteParts(self.name, self._number, parts)

    def parts_written(self, number: int) -> None:
        """Parts are acknowledged. If they are those of the base, an append may name it."""
        if self._writing is not None and number == self._number:
            self._written, self._writing = self._writing, None

    def base_waits(self, rows_upto: int) -> bool:
        """Whether a captured base waits for rows that changed before it."""
        base = self._written if self._writing is None else self._writing
        return base is not None and rows_upto < base[0]

    def wants_append(self, rows_upto: int) -> bool:
        """Whether the next append names a base."""
        return self._written is not None and self._written[0] <= rows_upto

    def collect(self, parts: Iterable[PartId]) -> None:
        """Delete these parts with the next base."""
        self._collected += parts
