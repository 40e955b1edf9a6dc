"""Changes that wait for the next append. Each append carries only what changed, and each change once (7.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from millwheel.authority.journal import (
    AcceptKeys,
    AcceptProcess,
    AuthorityEntry,
    Change,
    Expect,
    KeysRow,
    Percentile,
    ProcessRow,
    Remove,
)
from millwheel.authority.shares import Acceptance, AnyShare, M, Share
from millwheel.rpc.watermarks import Member

__all__ = ["Pending", "Taken", "journal_row", "row_size"]

_ROW_BYTES: Final = 32
"""The approximate size of a row in bytes, without its keys or name."""


def journal_row(share: AnyShare) -> KeysRow | ProcessRow:
    """Return the journal row of a share."""
    member = share.member
    if isinstance(member, str):
        return ProcessRow(member, share.sequencer, share.watermark, share.idle, share.last_report)
    return KeysRow(member.start, member.end, share.sequencer, share.watermark)


def row_size(row: KeysRow | ProcessRow) -> int:
    """Return the approximate size of a row in bytes."""
    if isinstance(row, ProcessRow):
        return _ROW_BYTES + len(row.process)
    return _ROW_BYTES + len(row.start) + len(row.end or b"")


@dataclass(slots=True)
class Taken:
    """The content of one append.

    ``entry``: the journal entry. ``answers``: the tokens that it answers, with their values. ``sequencers``: the
    sequencers that it accepts. ``removed``: the groups that it removes.
    """

    entry: AuthorityEntry
    answers: list[tuple[int, int]] = field(default_factory=list)
    sequencers: list[tuple[str, Member, int]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


class Pending:
    """State that is not journaled yet.

    Changes (acceptances, expected sets, removals) keep their order. For a share that moved, only the newest value is
    journaled. A share that was replaced since then is dropped, because its successor has its value.
    """

    def __init__(self) -> None:
        self.changes: list[tuple[int, str, AnyShare | Expect | Remove | Percentile]] = []
        self._moved: dict[str, dict[AnyShare, None]] = {}
        self._raised: dict[str, None] = {}

    @property
    def urgent(self) -> bool:
        """Whether an answer or a broadcast waits."""
        return bool(self.changes or self._raised)

    @property
    def dirty(self) -> bool:
        """Whether anything waits."""
        return bool(self.changes or self._raised or self._moved)

    def accepted(self, token: int, group: str, acceptance: Acceptance[M]) -> None:
        """Record an accepted sequencer. The remains of cut shares are journaled again with their newest values."""
        share: AnyShare = acceptance.share
        self._drop(group, acceptance.replaced)
        for rest in acceptance.remains:
            self.moved(group, rest)
        self.changes.append((token, group, share))

    def change(
        self, token: int, change: Expect | Remove | Percentile, group: str, dropped: Iterable[AnyShare] = ()
    ) -> None:
        """Record ``change``, which invalidates the shares in ``dropped``."""
        self._drop(group, dropped)
        self.changes.append((token, group, change))

    def moved(self, group: str, share: AnyShare) -> None:
        """Record a new value of ``share``."""
        self._moved.setdefault(group, {})[share] = None

    def raised(self, group: str) -> None:
        """Record that ``group`` has a new value to broadcast."""
        self._raised[group] = None

    def forget_value(self, group: str) -> None:
        """Drop the new value of ``group``, which was removed."""
        self._raised.pop(group, None)

    def take(self, value_of: Callable[[str], int], size: int) -> Taken:
        """Take about ``size`` bytes of what waits, changes first.

        ``value_of`` returns a group's decided value.

        Invariant: while changes remain, nothing after them is taken. A moved share may come from a cut that is not
        journaled yet. A value may belong to a group that is not journaled yet.
        """
        taken = Taken(AuthorityEntry([], {}, {}, {}))
        size -= self._take_changes(taken, value_of, size)
        if not self.changes:
            self._take_moved(taken.entry, size)
            taken.entry.values = {name: value_of(name) for name in self._raised}
            self._raised.clear()
        return taken

    def _take_changes(self, taken: Taken, value_of: Callable[[str], int], size: int) -> int:
        """Move changes of about ``size`` bytes, at least one, to ``taken``. Return the size of the moved changes."""
        used = count = 0
        for token, group, subject in self.changes:
            if used >= size:
                break
            count += 1
            watermark = value_of(group)
            change: Change
            if isinstance(subject, Share):
                change = _accepted(group, subject)
                watermark = max(watermark, subject.watermark)
                taken.sequencers.append((group, subject.member, subject.sequencer))
            else:
                change = subject
                if isinstance(subject, Remove):
                    taken.removed.append(group)
                elif isinstance(subject, Percentile):
                    watermark = subject.watermark
            used += _size(change)
            taken.entry.changes.append(change)
            taken.answers.append((token, watermark))
        del self.changes[:count]
        return used

    def _take_moved(self, entry: AuthorityEntry, size: int) -> None:
        """Move rows of about ``size`` bytes to ``entry``."""
        for group in list(self._moved):
            if size <= 0:
                return
            shares = self._moved[group]
            keys: list[KeysRow] = []
            processes: list[ProcessRow] = []
            for share in shares:
                if size <= 0:
                    break
                row = journal_row(share)
                if isinstance(row, ProcessRow):
                    processes.append(row)
                else:
                    keys.append(row)
                size -= row_size(row)
            if keys:
                entry.keys[group] = keys
            if processes:
                entry.processes[group] = processes
            if len(keys) + len(processes) == len(shares):
                del self._moved[group]
            else:
                self._moved[group] = dict.fromkeys(list(shares)[len(keys) + len(processes) :])

    def _drop(self, group: str, shares: Iterable[AnyShare]) -> None:
        waiting = self._moved.get(group)
        if waiting is None:
            return
        for share in shares:
            waiting.pop(share, None)
        if not waiting:
            del self._moved[group]


def _accepted(group: str, share: AnyShare) -> AcceptKeys | AcceptProcess:
    row = journal_row(share)
    return AcceptProcess(group, row) if isinstance(row, ProcessRow) else AcceptKeys(group, row)


def _size(change: Change) -> int:
    """Return the approximate size of ``change`` in bytes."""
    if isinstance(change, AcceptKeys | AcceptProcess):
        return row_size(change.row) + len(change.group)
    names: Sequence[str] = change.processes if isinstance(change, Expect) else ()
    return _ROW_BYTES + len(change.group) + sum(len(name) + 8 for name in names)
