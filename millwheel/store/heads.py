"""The heads of all journals of an embedded database, in memory, with facts that are derived from the stored rows.

One process owns the database, so its store thread can check every conditional write against this table.
"""

from __future__ import annotations

from typing import Final

from millwheel.model.envelope import wrap
from millwheel.store import journal_rules as rules
from millwheel.store import layout
from millwheel.store.contract import Append, CorruptValueError, JournalHead, PartId
from millwheel.store.rocks import Rocks, RowBatch

__all__ = ["MAX_DELETED_ENTRIES", "JournalHeads"]

MAX_DELETED_ENTRIES: Final = 256
"""Entries that are deleted in one write: about half a millisecond, in which the event loop does nothing else."""


class JournalHeads:
    """The heads. Only the store thread uses them.

    Invariants, for each journal J, whenever no write is in progress:

    - The head equals the stored head.
    - ``flushed[J]``: no state row written through J or an ancestor of J has a larger commit.
    - ``first[J]``: no entry below it is stored (absent: unknown).
    - ``cleared[J]``: every stored mark of an emptied row of J has at least this commit (absent: there is no mark).
    """

    def __init__(self, rocks: Rocks) -> None:
        self._rocks = rocks
        self._heads: dict[str, JournalHead] = {}
        self._damaged: dict[str, CorruptValueError] = {}
        self._first: dict[str, int] = {}
        self.flushed: dict[str, int] = {}
        self.cleared: dict[str, int] = {}
        self.reported: dict[str, int] = {}
        """By journal: the newest commit whose append had its result, perhaps before its sync."""
        self.load()

    def load(self) -> None:
        """Read all heads. Rows come only from committed entries, so the head's commit is a bound for ``flushed``."""
        self._heads.clear()
        self._damaged.clear()
        self._first.clear()
        lists = dict(self._rocks.scan(layout.PARTS, layout.past(layout.PARTS)))
        for key, value in self._rocks.scan(layout.HEAD, layout.past(layout.HEAD)):
            journal = layout.journal_of(key)
            try:
                self._heads[journal] = _decode(journal, value, lists.get(layout.parts_key(journal)))
            except CorruptValueError as error:
                self._damaged[journal] = error
        self.flushed = {journal: head.commit for journal, head in self._heads.items()}
        self.cleared = self._find_cleared()

    def note_reported(self, journal: str, commit: int) -> None:
        """The append of ``commit`` is written, and gets its result. The writer calls this before its lock is free.

        So no :meth:`drop` and no :meth:`lost` comes between. A journal that the same write deletes leaves nothing.
        """
        head = self._heads.get(journal)
        if head is not None and head.commit >= commit:
            self.reported[journal] = commit

    def lost(self) -> str:
        """A commit that was reported and is not stored. Empty: there is none.

        Invariant (G9): what was reported before its sync is stored, or the process ends. Other journals may have
        consumed its productions. A failed sync could break it: the disk may drop what was written before.
        """
        for journal, commit in list(self.reported.items()):
            head = self._heads.get(journal)
            if journal not in self._damaged and (head is None or head.commit < commit):
                return f"commit {commit} of journal {journal}"
        return ""

    def find(self, journal: str) -> JournalHead | None:
        """Return the head of ``journal`` or None; CorruptValueError if the stored head is damaged."""
        damage = self._damaged.get(journal)
        if damage is not None:
            raise CorruptValueError(damage.where, damage.why)
        return self._heads.get(journal)

    def present(self, journal: str) -> JournalHead:
        """Return the head of ``journal``, or raise JournalMissingError."""
        return rules.present(journal, self.find(journal))

    def create(self, journal: str, commit: int, batch: RowBatch) -> None:
        """Stage a new journal."""
        head = rules.created(journal, self.find(journal), commit)
        self.flushed[journal] = commit
        self._first[journal] = commit + 1
        self._put(journal, head, batch)

    def fence(self, journal: str, sequencer: int, batch: RowBatch) -> JournalHead:
        """Stage a new sequencer. Its owner's replay may write rows up to the head's commit again."""
        head = rules.fenced(journal, self.find(journal), sequencer)
        self.flushed[journal] = head.commit
        return self._put(journal, head, batch)

    def seal(self, journal: str, sequencer: int, batch: RowBatch) -> JournalHead:
        """Stage the sealing of a journal."""
        return self._put(journal, rules.sealed(journal, self.find(journal), sequencer), batch)

    def append(self, journal: str, append: Append, batch: RowBatch) -> bool:
        """Stage an entry and its head. Return whether the truncation point moved."""
        held = self.find(journal)
        head = rules.appended(journal, held, append)
        assert held is not None
        entry = wrap(append.entry)
        parts = layout.encode_parts(head.parts) if head.parts != held.parts else None
        batch.put(layout.entry_key(journal, append.commit), entry)
        batch.put(layout.head_key(journal), layout.encode_head(head))
        if parts is not None:
            batch.put(layout.parts_key(journal), parts)
        self._heads[journal] = head
        return head.truncation_point != held.truncation_point

    def delete_entries(self, journal: str, below: int, batch: RowBatch) -> bool:
        """Stage the deletion of entries with a commit below ``below``. Returns whether some are left for a later call.

        Reads are faster after single deletions than after a range deletion. Single deletions need a known first entry.
        """
        head = self.find(journal)
        if head is None:
            return False
        rules.check_deletable(journal, head, below)
        first = self._first.get(journal)
        if first is None:
            batch.delete_range(layout.entry_key(journal, 0), layout.entry_key(journal, below))
            self._first[journal] = below
            return False
        upto = min(below, first + MAX_DELETED_ENTRIES)
        for commit in range(first, upto):
            batch.delete(layout.entry_key(journal, commit))
        self._first[journal] = max(first, upto)
        return upto < below

    def delete_parts(self, journal: str, parts: list[PartId], batch: RowBatch) -> None:
        """Stage the deletion of parts that the head does not name."""
        head = self.find(journal)
        if head is None:
            return
        rules.check_unnamed(journal, head, parts)
        for part in parts:
            batch.delete(layout.part_key(journal, part))

    def drop(self, journal: str, batch: RowBatch) -> None:
        """Stage the deletion of a journal, except for its marks of emptied rows."""
        self.reported.pop(journal, None)
        self._heads.pop(journal, None)
        self._damaged.pop(journal, None)
        self._first.pop(journal, None)
        self.flushed.pop(journal, None)
        batch.delete(layout.head_key(journal))
        batch.delete(layout.parts_key(journal))
        for start, end in layout.journal_ranges(journal):
            batch.delete_range(start, end)

    def note_cleared(self, journal: str, commit: int) -> None:
        """Record that a mark with ``commit`` is being written."""
        self.cleared[journal] = min(commit, self.cleared.get(journal, commit))

    def has_cleared(self, journal: str) -> bool:
        """Return whether the truncation point has passed rows that ``journal`` emptied, so that they can be deleted."""
        lowest = self.cleared.get(journal)
        return lowest is not None and lowest <= self._heads[journal].truncation_point

    def dropped_with_marks(self) -> list[str]:
        """Return the deleted journals that still have emptied rows."""
        return sorted(self.cleared.keys() - self._heads.keys() - self._damaged.keys())

    def _put(self, journal: str, head: JournalHead, batch: RowBatch) -> JournalHead:
        batch.put(layout.head_key(journal), layout.encode_head(head))
        self._heads[journal] = head
        return head

    def _find_cleared(self) -> dict[str, int]:
        """Return the journals with marks of emptied rows. The scan jumps from one journal's marks to the next's."""
        found: dict[str, int] = {}
        start, end = layout.CLEARED, layout.past(layout.CLEARED)
        while marks := self._rocks.scan(start, end, limit=1):
            journal = marks[0][0][1:].split(b"\0", 1)[0].decode()
            found[journal] = layout.name_cleared(journal, marks[0][0])[0]
            start = layout.past(layout.cleared_prefix(journal))
        return found


def _decode(journal: str, value: bytes, listed: bytes | None) -> JournalHead:
    parts = () if listed is None else layout.decode_parts(listed, f"part list of journal {journal}")
    return layout.decode_head(value, parts, f"head of journal {journal}")
