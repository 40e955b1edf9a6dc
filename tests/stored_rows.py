"""The rows that a memory store has. The store's contract reads rows by their keys only."""

from __future__ import annotations

from millwheel.model.incarnation import IncarnationId
from millwheel.store.contract import StateRow
from millwheel.store.memory import MemoryStore


def rows_of(store: MemoryStore, incarnation: IncarnationId) -> list[StateRow]:
    """All rows of an incarnation but emptied ones, in key order."""
    rows = store.states.get(incarnation, {})
    return [row for _, row in sorted(rows.items()) if row.blob]
