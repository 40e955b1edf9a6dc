"""The rules of a journal: they decide every change of a head, for all stores that keep heads in memory.

These are plain functions. They take the current head (None if there is no such journal) and return the new head. They
raise where the contract refuses, and change nothing themselves.
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
    """Return the head of a new journal that starts at ``commit``; JournalExistsError if the journal exists."""
    if not journal or "\0" in journal:
        raise ValueError(f"a journal id is not empty and holds no NUL: {journal!r}")
    if commit < 0:
        raise ValueError(f"journal {journal} cannot start at commit {commit}: commit numbers are not negative")
    if held is not None:
        raise JournalExistsError(f"journal {journal} exists already: incarnation ids are never used twice")
    return JournalHead(sequencer=0, commit=commit, truncation_point=commit, parts=())


def present(journal: str, held: JournalHead | None) -> JournalHead:
    """Return ``held``, or raise JournalMissingError if it is None."""
    if held is None:
        raise JournalMissingError(f"journal {journal} does not exist: it was never created, or was dropped")
    return held


def fenced(journal: str, held: JournalHead | None, sequencer: int) -> JournalHead:
    """Return the head with the new ``sequencer`` (section 6.2). Refused unless it is larger than the current one."""
    if sequencer >= TERMINAL_SEQUENCER:
        raise ValueError(f"sequencer {sequencer} is reserved: it marks a sealed journal")
    head = present(journal, held)
    if sequencer <= head.sequencer:
        raise SequencerRefusedError(journal, head.sequencer, head.commit)
    return replace(head, sequencer=sequencer)


def sealed(journal: str, held: JournalHead | None, sequencer: int) -> JournalHead:
    """Return the head after a successor with ``sequencer`` seals the journal. A sealed head stays the same."""
    if sequencer >= TERMINAL_SEQUENCER:
        raise ValueError(f"sequencer {sequencer} is reserved: it marks a sealed journal")
    head = present(journal, held)
    if head.sequencer == TERMINAL_SEQUENCER:
        return head
    if head.sequencer > sequencer:
        raise SequencerRefusedError(journal, head.sequencer, head.commit)
    return replace(head, sequencer=TERMINAL_SEQUENCER)


def appended(journal: str, held: JournalHead | None, append: Append) -> JournalHead:
    """Return the head after the append (G2, G3). Refused unless sequencer and previous commit match the head."""
    head = present(journal, held)
    refused = head.sequencer != append.sequencer or head.commit != append.commit - 1
    if refused or head.sequencer == TERMINAL_SEQUENCER:
        raise SequencerRefusedError(journal, head.sequencer, head.commit)
    if not head.truncation_point <= append.truncation_point <= append.commit:
        raise ValueError(
            f"journal {journal}: truncation point {append.truncation_point} of commit {append.commit} is not within "
            f"{head.truncation_point}..commit"
        )
    return JournalHead(append.sequencer, append.commit, append.truncation_point, append.parts)


def check_deletable(journal: str, head: JournalHead, below: int) -> None:
    """Raise ValueError if a deletion of entries ``below`` would remove an entry that a takeover reads."""
    if below > head.truncation_point + 1:
        raise ValueError(
            f"journal {journal}: entries from {head.truncation_point + 1} on are needed, asked to delete below {below}"
        )


def check_unnamed(journal: str, head: JournalHead, parts: Sequence[PartId]) -> None:
    """Raise ValueError if the committed head names one of ``parts``."""
    named = set(head.parts).intersection(parts)
    if named:
        raise ValueError(f"journal {journal}: the committed head names {min(named)}, so it cannot be deleted")


def check_rows(journal: str, head: JournalHead, rows: Sequence[StateRow]) -> int:
    """Return the largest commit number of ``rows``. StoreError if the journal has not committed it yet.

    Otherwise a takeover that never sees the entry could read its row as committed (G2).
    """
    newest = max(row.commit for row in rows)
    if newest > head.commit:
        raise StoreError(
            f"journal {journal} is at commit {head.commit}: a state row of commit {newest} may not be written before it"
        )
    return newest
