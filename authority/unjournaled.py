"""What calls have changed in a shard and no append has yet: in order, and each change once (7.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from millwheel.authority.group import journal_row, row_size
from millwheel.authority.journal import (
    AcceptKeys,
    AcceptProcess,
    AuthorityEntry,
    Change,
    Expect,
    Percentile,
    ProcessRow,
    Remove,
)
from millwheel.authority.members import AnyMemberState, MemberState
from millwheel.rpc.watermarks import Member

__all__ = ["AppendContent", "UnjournaledChanges"]

_CHANGE_BYTES: Final = 32
"""The approximate size of a change in bytes, without its rows and names."""


@dataclass(slots=True)
class AppendContent:
    """The content of one append.

    ``entry``: the journal entry. ``answers``: the tokens that it answers, with their values. ``sequencers``: the
    sequencers that it accepts. ``removed``: the groups that it removes.
    """

    entry: AuthorityEntry
    answers: list[tuple[int, int]] = field(default_factory=list)
    sequencers: list[tuple[str, Member, int]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


class UnjournaledChanges:
    """The changes that wait for an append: acceptances (the new states), expected sets, removals and percentiles."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, str, AnyMemberState | Expect | Remove | Percentile]] = []

    def add(self, token: int, group: str, change: AnyMemberState | Expect | Remove | Percentile) -> None:
        """Record a change of ``group``. The call ``token`` is answered when it is journaled."""
        self.changes.append((token, group, change))

    def take(self, content: AppendContent, value_of: Callable[[str], int], size: int) -> int:
        """Move changes of about ``size`` bytes, at least one, to ``content``. Return the size of the moved changes.

        ``value_of`` returns a group's decided value.
        """
        used = count = 0
        for token, group, subject in self.changes:
            if used >= size:
                break
            count += 1
            watermark = value_of(group)
            change: Change
            if isinstance(subject, MemberState):
                change = _accepted(group, subject)
                watermark = max(watermark, subject.watermark)
                content.sequencers.append((group, subject.member, subject.sequencer))
            else:
                change = subject
                if isinstance(subject, Remove):
                    content.removed.append(group)
                elif isinstance(subject, Percentile):
                    watermark = subject.watermark
            used += _size(change)
            content.entry.changes.append(change)
            content.answers.append((token, watermark))
        del self.changes[:count]
        return used


def _accepted(group: str, state: AnyMemberState) -> AcceptKeys | AcceptProcess:
    row = journal_row(state)
    return AcceptProcess(group, row) if isinstance(row, ProcessRow) else AcceptKeys(group, row)


def _size(change: Change) -> int:
    """Return the approximate size of ``change`` in bytes."""
    if isinstance(change, AcceptKeys | AcceptProcess):
        return row_size(change.row) + len(change.group)
    names: Sequence[str] = change.processes if isinstance(change, Expect) else ()
    return _CHANGE_BYTES + len(change.group) + sum(len(name) + 8 for name in names)
