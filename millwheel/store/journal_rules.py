"""What may be done to a journal: the decisions of every store that keeps its heads in memory.

Plain functions from the head that is held (None: there is no such journal) to the head that shall be
held. They raise where the contract refuses, and change nothing themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millwheel.store.contract import (
    TERMINAL_SEQUENCER,
    Append,
    JournalExistsError,
    JournalHead,
    JournalMissingError,
    PartId,
    SequencerRefusedError,
    StateRow,
    StoreError,
)

__all__ = ["appended", "check_deletable", "check_rows", "check_unnamed", "created", "fenced", "present", "sealed"]


def created(journal: str, held: JournalHead | None, commit: int) -> JournalHead:
    """The head of a new journal that starts at ``commit``; JournalExistsError if there is one."""
    if not journal or "\0" in journal:
        raise ValueError(f"a journal id is not empty and holds no NUL: {journal!r}")
    if commit < 0:
        raise ValueError(f"journal {journal} cannot start at commit {commit}: commit numbers are not negative")
    if held is not None:
        raise JournalExistsError(f"journal {journal} exists already: incarnation ids are never used twice")
    return JournalHead(sequencer=0, commit=commit, floor=commit, parts=())


def present(journal: str, held: JournalHead | None) -> JournalHead:
    """The head held, or JournalMissingError."""
    if held is None:
        raise JournalMissingError(f"journal {journal} does not exist: it was never created, or was dropped")
    return held


def fenced(journal: str, held: JournalHead | None, sequencer: int) -> JournalHead:
    """The head after ``sequencer`` took the journal (section 6.2); refused unless it exceeds the one held."""
    if sequencer >= TERMINAL_SEQUENCER:
        raise ValueError(f"sequencer {sequencer} is reserved: it marks a sealed journal")
    head = present(journal, held)
    if sequencer <= head.sequencer:
        raise SequencerRefusedError(journal, head.sequencer, head.commit)
    return replace(head, sequencer=sequencer)


def sealed(journal: str, held: JournalHead | None, sequencer: int) -> JournalHead:
    """The head after a successor with ``sequencer`` ended the journal; the same if it is sealed already."""
    if sequencer >= TERMINAL_SEQUENCER:
        raise ValueError(f"sequencer {sequencer} is reserved: it marks a sealed journal")
    head = present(journal, held)
    if head.sequencer == TERMINAL_SEQUENCER:
        return head
    if head.sequencer > sequencer:
        raise SequencerRefusedError(journal, head.sequencer, head.commit)
    return replace(head, sequencer=TERMINAL_SEQUENCER)


def appended(journal: str, held: JournalHead | None, append: Append) -> JournalHead:
    """The head after the append (G2, G3); refused unless the journal is at its sequencer and the commit before."""
    head = present(journal, held)
    refused = head.sequencer != append.sequencer or head.commit != append.commit - 1
    if refused or head.sequencer == TERMINAL_SEQUENCER:
        raise SequencerRefusedError(journal, head.sequencer, head.commit)
    if not head.floor <= append.floor <= append.commit:
        raise ValueError(
            f"journal {journal}: floor {append.floor} of commit {append.commit} is not within {head.floor}..commit"
        )
    return JournalHead(append.sequencer, append.commit, append.floor, append.parts)


def check_deletable(journal: str, head: JournalHead, below: int) -> None:
    """ValueError if deleting entries ``below`` would take one that a takeover reads."""
    if below > head.floor + 1:
        raise ValueError(
            f"journal {journal}: entries from {head.floor + 1} on are needed, asked to delete below {below}"
        )


def check_unnamed(journal: str, head: JournalHead, parts: Sequence[PartId]) -> None:
    """ValueError if one of ``parts`` is named by the committed head."""
    named = set(head.parts).intersection(parts)
    if named:
        raise ValueError(f"journal {journal}: the committed head names {min(named)}, so it cannot be deleted")


def check_rows(journal: str, head: JournalHead, rows: Sequence[StateRow]) -> int:
    """The largest commit number of ``rows``; StoreError if the journal has not committed it yet.

    A row ahead of its entry could be read as committed by a takeover that never sees the entry (G2).
    """
    newest = max(row.commit for row in rows)
    if newest > head.commit:
        raise StoreError(
            f"journal {journal} is at commit {head.commit}: a state row of commit {newest} may not be written before it"
        )
    return newest
