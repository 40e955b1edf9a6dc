"""What an owner counts with its commits (section 6.1.2)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CommitCounts"]


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
