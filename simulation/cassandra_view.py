"""The content of a simulated Cassandra, in the form in which checkers read any simulated store."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from millwheel.model.envelope import unwrap
from millwheel.model.incarnation import IncarnationId
from millwheel.store.contract import TERMINAL_SEQUENCER, Append, CorruptValueError, JournalHead, PartId
from millwheel.store.layout import decode_parts, decode_row
from millwheel.store.memory import MemoryJournal, MemoryStore
from simulation.cells import CellMutation, CellTables, Partition

__all__ = ["Change", "View"]


@dataclass(slots=True)
class Change:
    """The effect of a mutation on a journal's head."""

    fenced: int | None = None
    sealed: bool = False
    append: Append | None = None


class View(MemoryStore):
    """Journals, parts and rows of the tables. It follows each mutation after that was applied."""

    def __init__(self, tables: CellTables) -> None:
        super().__init__()
        self._tables = tables
        self._parts: dict[str, dict[PartId, bytes]] = {}
        """By journal, including journals that no longer exist."""

    def follow(self, mutation: CellMutation) -> Change:
        """Follow the changes of ``mutation``."""
        table, key = mutation.place
        partition = self._tables.partition(mutation.place)
        if table == "journals":
            return self._journal(key[0], partition, mutation)
        if table == "parts":
            self._follow_parts(key[0], partition, mutation)
        else:
            self._follow_rows(key[0], partition, mutation)
        return Change()

    def _journal(self, journal: str, partition: Partition, mutation: CellMutation) -> Change:
        before, head = self.journals.get(journal), _head(journal, partition)
        if head is None:
            self.journals.pop(journal, None)
            return Change()
        parts = self._parts.setdefault(journal, {})
        held = self.journals[journal] = before or MemoryJournal(head, {}, parts)
        was, held.head = held.head, head
        for row, column, _, _ in mutation.cells:
            if row is not None and row[0] >= 0 and column == "value" and row in partition.rows:
                held.entries[row[0]] = unwrap(partition.rows[row]["value"][1], f"entry {row[0]} of journal {journal}")
        if mutation.deletions:
            held.entries = {commit: entry for commit, entry in held.entries.items() if (commit,) in partition.rows}
        if before is None:
            return Change()
        change = Change(sealed=head.sequencer == TERMINAL_SEQUENCER != was.sequencer)
        if head.sequencer != was.sequencer and not change.sealed:
            change.fenced = head.sequencer
        if head.commit != was.commit:
            entry = held.entries.get(head.commit, b"")
            change.append = Append(head.sequencer, head.commit, head.truncation_point, head.parts, entry)
        return change

    def _follow_parts(self, journal: str, partition: Partition, mutation: CellMutation) -> None:
        parts = self._parts.setdefault(journal, {})
        names = {row[:3] for row, *_ in mutation.cells if row is not None}
        names |= {(part.name, part.sequencer, part.commit) for part in parts} if mutation.deletions else set()
        for name in names:
            chunks = [row for row in sorted(partition.rows) if row[:3] == name and partition.live(row)]
            value = b"".join(partition.rows[row]["value"][1] for row in chunks)
            try:
                parts[PartId(*name)] = unwrap(value, f"part {name}")
            except CorruptValueError:
                parts.pop(PartId(*name), None)  # the part does not exist, or a chunk is missing

    def _follow_rows(self, incarnation: IncarnationId, partition: Partition, mutation: CellMutation) -> None:
        states = self.states.setdefault(incarnation, {})
        for row, column, _, _ in mutation.cells:
            if row is not None and column == "value" and row in partition.rows:
                states[row[0]] = decode_row(incarnation, row[0], partition.rows[row]["value"][1])
        if mutation.deletions:
            known = {
                row[0]
                for place, one in self._tables.partitions.items()
                if place[0] == "states" and place[1][0] == incarnation
                for row in one.rows
            }
            for key in [key for key in states if key not in known]:
                del states[key]


def _head(journal: str, partition: Partition) -> JournalHead | None:
    sequencer: Any = partition.value("sequencer")
    if sequencer is None:
        return None
    listed = partition.value("parts")
    named = () if listed is None else _named(listed)
    return JournalHead(sequencer, partition.value("commit"), partition.value("truncation_point"), named)


@lru_cache(1_000)
def _named(listed: bytes) -> tuple[PartId, ...]:
    return decode_parts(listed, "part list")
