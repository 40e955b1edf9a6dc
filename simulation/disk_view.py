"""The disk of an embedded store, in the form in which checkers read any simulated store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millwheel.model.envelope import unwrap
from millwheel.model.incarnation import IncarnationId
from millwheel.store import layout
from millwheel.store.memory import MemoryJournal, MemoryStore
from simulation.rocks import Change

__all__ = ["DiskView"]


class DiskView(MemoryStore):
    """Follows the changes of each batch when that batch is on the disk."""

    def take(self, changes: Sequence[Change]) -> None:
        """Follow the changes of one batch."""
        for family, key, value, end in changes:
            if family:
                self._row(key, value, end)
            elif end is not None:
                self._forget(key, end)
            elif key[:1] == layout.HEAD:
                self._take_head(layout.journal_of(key), value)
            elif key[:1] == layout.PARTS:
                self._take_list(layout.journal_of(key), value)
            elif key[:1] in b"eb":
                self._take_value(key, value)

    def _take_head(self, journal: str, value: bytes | None) -> None:
        if value is None:
            self.journals.pop(journal, None)
            return
        held = self.journals.get(journal)
        head = layout.decode_head(value, () if held is None else held.head.parts, journal)
        if held is None:
            self.journals[journal] = MemoryJournal(head)
        else:
            held.head = head

    def _take_list(self, journal: str, value: bytes | None) -> None:
        if value is not None:
            held = self.journals[journal]
            held.head = replace(held.head, parts=layout.decode_parts(value, journal))

    def _take_value(self, key: bytes, value: bytes | None) -> None:
        """Follow an entry or a part."""
        journal = _journal(key)
        held = self.journals.get(journal)
        if held is None:
            return
        if key[:1] == b"b":
            part = layout.part_of(journal, key)
            held.parts.pop(part, None)
            if value is not None:
                held.parts[part] = unwrap(value, journal)
        else:
            commit = int.from_bytes(key[-8:], "big")
            held.entries.pop(commit, None)
            if value is not None:
                held.entries[commit] = unwrap(value, journal)

    def _forget(self, start: bytes, end: bytes) -> None:
        journal = _journal(start)
        held = self.journals.get(journal)
        if held is not None and start[:1] == b"e":
            gone = [commit for commit in held.entries if start <= layout.entry_key(journal, commit) < end]
            for commit in gone:
                del held.entries[commit]
        elif held is not None:
            for part in [part for part in held.parts if start <= layout.part_key(journal, part) < end]:
                del held.parts[part]

    def _row(self, key: bytes, value: bytes | None, end: bytes | None) -> None:
        name, _, rest = key.partition(b"\0")
        computation = name.decode()
        states = self.states.setdefault(computation, {})
        if end is not None:
            states.clear()
        elif value is None:
            states.pop(rest, None)
        else:
            states[rest] = layout.decode_row(IncarnationId(computation), rest, value)


def _journal(key: bytes) -> str:
    return key[1:].partition(b"\0")[0].decode()
