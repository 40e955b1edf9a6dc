"""The heads of all journals of an embedded database, in memory, and what is known beside them.

One process owns the database, so its store thread decides every conditional write against this table.
"""

from __future__ import annotations

from millwheel.store import journal_rules as rules
from millwheel.store import layout
from millwheel.store.contract import Append, CorruptValueError, JournalHead, PartId
from millwheel.store.envelope import wrap
from millwheel.store.rocks import Batch, Rocks

__all__ = ["JournalHeads"]


class JournalHeads:
    """Belongs to the store thread.

    Invariants, for each journal J, whenever no write is under way:

    - the head equals the stored one;
    - ``flushed[J]``: no state row written through J, or by a journal that J descends from, has a larger commit;
    - ``first[J]``: no entry below it is stored (absent: unknown);
    - every stored mark of an emptied row of J has a commit of at least ``cleared[J]`` (absent: there is none).
    """

    def __init__(self, rocks: Rocks) -> None:
        self._rocks = rocks
        self._heads: dict[str, JournalHead] = {}
        self._damaged: dict[str, CorruptValueError] = {}
        self._first: dict[str, int] = {}
        self.flushed: dict[str, int] = {}
        self.cleared: dict[str, int] = {}
        self.load()

    def load(self) -> None:
        """Read all heads. Rows only show committed entries, so the commit bounds what was flushed."""
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

    def find(self, journal: str) -> JournalHead | None:
        """The head of ``journal`` or None; CorruptValueError if what is stored of it is damaged."""
        damage = self._damaged.get(journal)
        if damage is not None:
            raise CorruptValueError(damage.where, damage.why)
        return self._heads.get(journal)

    def present(self, journal: str) -> JournalHead:
        """The head of ``journal``, or JournalMissingError."""
        return rules.present(journal, self.find(journal))

    def create(self, journal: str, commit: int, batch: Batch) -> None:
        """Stage a new journal."""
        head = rules.created(journal, self.find(journal), commit)
        self.flushed[journal] = commit
        self._first[journal] = commit + 1
        self._put(journal, head, batch)

    def fence(self, journal: str, sequencer: int, batch: Batch) -> JournalHead:
        """Stage a new holder; from its replay rows up to the commit found may come again."""
        head = rules.fenced(journal, self.find(journal), sequencer)
        self.flushed[journal] = head.commit
        return self._put(journal, head, batch)

    def seal(self, journal: str, sequencer: int, batch: Batch) -> JournalHead:
        """Stage the end of a journal."""
        return self._put(journal, rules.sealed(journal, self.find(journal), sequencer), batch)

    def append(self, journal: str, append: Append, batch: Batch) -> bool:
        """Stage an entry with the head that it makes; whether the floor moved."""
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
        return head.floor != held.floor

    def delete_entries(self, journal: str, below: int, batch: Batch) -> None:
        """Stage the deletion of a prefix: key by key where it is known, which reads better than a range."""
        head = self.find(journal)
        if head is None:
            return
        rules.check_deletable(journal, head, below)
        first = self._first.get(journal)
        if first is None:
            batch.delete_range(layout.entry_key(journal, 0), layout.entry_key(journal, below))
        else:
            for commit in range(first, below):
                batch.delete(layout.entry_key(journal, commit))
        self._first[journal] = max(first or 0, below)

    def delete_parts(self, journal: str, parts: list[PartId], batch: Batch) -> None:
        """Stage the deletion of parts that the head does not name."""
        head = self.find(journal)
        if head is None:
            return
        rules.check_unnamed(journal, head, parts)
        for part in parts:
            batch.delete(layout.part_key(journal, part))

    def drop(self, journal: str, batch: Batch) -> None:
        """Stage the deletion of all of a journal but its marks of emptied rows."""
        self._heads.pop(journal, None)
        self._damaged.pop(journal, None)
        self._first.pop(journal, None)
        self.flushed.pop(journal, None)
        batch.delete(layout.head_key(journal))
        batch.delete(layout.parts_key(journal))
        for start, end in layout.journal_ranges(journal):
            batch.delete_range(start, end)

    def note_cleared(self, journal: str, commit: int) -> None:
        """A mark with ``commit`` is being written."""
        self.cleared[journal] = min(commit, self.cleared.get(journal, commit))

    def has_cleared(self, journal: str) -> bool:
        """Whether rows that ``journal`` emptied can go, now that the floor is where it is."""
        lowest = self.cleared.get(journal)
        return lowest is not None and lowest <= self._heads[journal].floor

    def dropped_with_marks(self) -> list[str]:
        """Journals that are gone, and whose emptied rows are not yet."""
        return sorted(self.cleared.keys() - self._heads.keys() - self._damaged.keys())

    def _put(self, journal: str, head: JournalHead, batch: Batch) -> JournalHead:
        batch.put(layout.head_key(journal), layout.encode_head(head))
        self._heads[journal] = head
        return head

    def _find_cleared(self) -> dict[str, int]:
        """The journals with marks of emptied rows, found by leaping from one journal's marks to the next's."""
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
