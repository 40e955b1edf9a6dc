"""The store contract in plain dictionaries: deterministic, without threads, lost when the process ends.

For tests and simulation. A call never suspends, so it is one step of an event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millwheel.model.incarnation import IncarnationId
from millwheel.store import journal_rules as rules
from millwheel.store.contract import (
    Append,
    CorruptValueError,
    JournalHead,
    PartId,
    StateRow,
    StoreUnavailableError,
)

__all__ = ["MemoryJournal", "MemoryStore"]


@dataclass(slots=True)
class MemoryJournal:
    """What the store has of one journal."""

    head: JournalHead
    entries: dict[int, bytes] = field(default_factory=dict)
    parts: dict[PartId, bytes] = field(default_factory=dict)


class MemoryStore:
    """A :class:`~millwheel.store.contract.StateStore` that keeps everything in this object, for all to read.

    It has many methods: those of the contract.
    """

    def __init__(self) -> None:
        self.journals: dict[str, MemoryJournal] = {}
        self.states: dict[str, dict[bytes, StateRow]] = {}
        """By computation and key. A row without a state is here, and in no answer."""
        self._closed = False

    async def create_journal(self, journal: str, commit: int = 0) -> None:
        """See :meth:`StateStore.create_journal`."""
        self.journals[journal] = MemoryJournal(rules.created(journal, self.head(journal), commit))

    async def fence(self, journal: str, sequencer: int) -> JournalHead:
        """See :meth:`StateStore.fence`."""
        return self._put(journal, rules.fenced(journal, self.head(journal), sequencer))

    async def seal(self, journal: str, sequencer: int) -> JournalHead:
        """See :meth:`StateStore.seal`."""
        return self._put(journal, rules.sealed(journal, self.head(journal), sequencer))

    async def read_head(self, journal: str) -> JournalHead:
        """See :meth:`StateStore.read_head`."""
        return rules.present(journal, self.head(journal))

    async def append(self, journal: str, append: Append) -> None:
        """See :meth:`StateStore.append`."""
        self._put(journal, rules.appended(journal, self.head(journal), append))
        self.journals[journal].entries[append.commit] = bytes(append.entry)

    async def read_entries(self, journal: str, first: int, last: int) -> list[bytes]:
        """See :meth:`StateStore.read_entries`."""
        held = self._find(journal)
        found = {} if held is None else held.entries
        for commit in range(first, last + 1):
            if commit not in found:
                raise CorruptValueError(f"entry {commit} of journal {journal}", "the value is missing")
        return [found[commit] for commit in range(first, last + 1)]

    async def delete_entries(self, journal: str, below: int) -> None:
        """See :meth:`StateStore.delete_entries`. ValueError if a takeover would miss one of them."""
        held = self._find(journal)
        if held is None:
            return
        rules.check_deletable(journal, held.head, below)
        held.entries = {commit: entry for commit, entry in held.entries.items() if commit >= below}

    async def write_part(self, journal: str, part: PartId, blob: bytes) -> None:
        """See :meth:`StateStore.write_part`. JournalMissingError if there is no such journal."""
        rules.present(journal, self.head(journal))
        self.journals[journal].parts[part] = bytes(blob)

    async def read_parts(self, journal: str, parts: Sequence[PartId]) -> list[bytes]:
        """See :meth:`StateStore.read_parts`."""
        held = self._find(journal)
        found = {} if held is None else held.parts
        for part in parts:
            if part not in found:
                raise CorruptValueError(f"part {part} of journal {journal}", "the value is missing")
        return [found[part] for part in parts]

    async def list_parts(self, journal: str) -> list[PartId]:
        """See :meth:`StateStore.list_parts`."""
        held = self._find(journal)
        return [] if held is None else sorted(held.parts)

    async def delete_parts(self, journal: str, parts: Sequence[PartId]) -> None:
        """See :meth:`StateStore.delete_parts`. ValueError if the committed head names one of them."""
        held = self._find(journal)
        if held is None:
            return
        rules.check_unnamed(journal, held.head, parts)
        for part in parts:
            held.parts.pop(part, None)

    async def write_states(
        self, incarnation: IncarnationId, journal: str, sequencer: int, rows: Sequence[StateRow]
    ) -> None:
        """See :meth:`StateStore.write_states`."""
        head = self.head(journal)
        if head is None or head.sequencer != sequencer or not rows:
            return
        rules.check_rows(journal, head, rows)
        states = self.states.setdefault(incarnation, {})
        for row in rows:
            stored = states.get(row.key)
            if stored is None or stored.commit <= row.commit:
                states[row.key] = row

    async def read_states(self, incarnation: IncarnationId, keys: Sequence[bytes]) -> list[StateRow | None]:
        """See :meth:`StateStore.read_states`."""
        self._check_open()
        states = self.states.get(incarnation, {})
        rows = (states.get(key) for key in keys)
        return [row if row is not None and row.blob else None for row in rows]

    async def list_states(self, incarnation: IncarnationId, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        """See :meth:`StateStore.list_states`."""
        self._check_open()
        keys = sorted(key for key in self.states.get(incarnation, {}) if start <= key and (end is None or key < end))
        return keys[:limit]

    async def drop_journal(self, journal: str) -> None:
        """See :meth:`StateStore.drop_journal`."""
        self._check_open()
        self.journals.pop(journal, None)

    async def drop_incarnation(self, incarnation: IncarnationId) -> None:
        """See :meth:`StateStore.drop_incarnation`."""
        self._check_open()
        self.states.pop(incarnation, None)

    async def close(self) -> None:
        """See :meth:`StateStore.close`."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError("the store is closed")

    def _find(self, journal: str) -> MemoryJournal | None:
        self._check_open()
        return self.journals.get(journal)

    def head(self, journal: str) -> JournalHead | None:
        """The journal's head; None if there is no such journal."""
        held = self._find(journal)
        return None if held is None else held.head

    def _put(self, journal: str, head: JournalHead) -> JournalHead:
        self.journals[journal].head = head
        return head
