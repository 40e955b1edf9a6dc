"""What one interval has in its journal: commit numbers, the truncation point, parts, id segments, and totals."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from millwheel.store.contract import PartId

__all__ = ["IntervalCounts", "IntervalJournal"]


@dataclass(slots=True)
class IntervalCounts:
    """Totals since the computation began. They are journaled with the commits that they count."""

    records: int = 0
    duplicates: int = 0
    late: int = 0
    dead_letters: int = 0

    @property
    def row(self) -> tuple[int, int, int, int]:
        """The totals as the journal stores them."""
        return self.records, self.duplicates, self.late, self.dead_letters

    def add(self, more: IntervalCounts) -> None:
        """Add the totals ``more``."""
        self.records += more.records
        self.duplicates += more.duplicates
        self.late += more.late
        self.dead_letters += more.dead_letters

    def since(self, before: IntervalCounts) -> IntervalCounts:
        """The difference from the earlier totals ``before``."""
        return IntervalCounts(*(now - then for now, then in zip(self.row, before.row, strict=True)))


class IntervalJournal:
    """The journal's content as its owner knows it. Only the commit pipeline and the takeover change it.

    Invariant: truncation point <= committed <= sealed.
    """

    def __init__(self) -> None:
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
        self.counts = IntervalCounts()
        self._inherited = IntervalCounts()

    @property
    def still(self) -> bool:
        """Whether each sealed commit is in the journal. Then the soft state is the committed state."""
        return self.sealed == self.committed

    @property
    def counted(self) -> IntervalCounts:
        """The totals since this owner took over."""
        return self.counts.since(self._inherited)

    def truncate(self, point: int, parts: tuple[PartId, ...], dropped: Iterable[PartId]) -> list[PartId]:
        """An append has named ``point`` and the base ``parts``.

        Returns the parts that the head no longer names, and those of ``dropped``.
        """
        gone = sorted({*self.parts, *dropped}.difference(parts))
        self.truncation_point, self.parts = point, parts
        for commit in [commit for commit in self.entry_parts if commit <= point]:
            gone += self.entry_parts.pop(commit)
        return gone

    def drop_segments(self, kept: Container[str]) -> list[PartId]:
        """Drop the id segments that are not ``kept``. Returns their parts."""
        gone: list[PartId] = []
        for name in [name for name in self.segments if name not in kept]:
            gone += self.segments.pop(name)
        return gone

    def segments_copied(self, copies: Mapping[str, tuple[PartId, ...]]) -> list[PartId]:
        """All foreign segments have copies in this journal. Returns the copies that are not needed any more."""
        self.foreign.clear()
        unneeded: list[PartId] = []
        for name, parts in copies.items():
            if name in self.segments:
                self.segments[name] = parts
            else:
                unneeded += parts
        return unneeded

    def restore_counts(self, counts: Iterable[int]) -> None:
        """Continue from the totals of the earlier owner: a takeover."""
        self.counts = IntervalCounts(*counts)
        self._inherited = IntervalCounts(*self.counts.row)
