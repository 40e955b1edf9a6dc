"""The values of one group: of its members, and their minimum, until they are journaled (7.2; G4, G7).

A report passes only this file of a group. Which members there are is decided in :mod:`millwheel.authority.keyed` for
key intervals, and in :mod:`millwheel.authority.injected` for the processes of an injector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final, Generic

from millwheel.authority.journal import AuthorityEntry, KeysRow, ProcessRow
from millwheel.authority.shares import AnyShare, M, Refusal, Share
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.model.watermarks import MinTracker
from millwheel.rpc.watermarks import WatermarkReport

__all__ = ["Group", "journal_row", "row_size"]

_ROW_BYTES: Final = 32
"""The approximate size of a row in bytes, without its keys or name."""


class Group(ABC, Generic[M]):
    """The shares of one group by member, and their minimum.

    ``value`` is decided but not necessarily journaled. ``percentiles`` are decided percentile watermarks, by percentile
    in hundredths of a percent. Invariant: none of these values goes back (G7).

    ``moved``: the shares whose newest value no entry has.
    """

    __slots__ = ("_shares", "_working", "moved", "name", "percentiles", "value")

    of_processes: ClassVar[bool] = False
    """Whether the members are processes: they may be idle, and for them plus infinity is final."""

    def __init__(self, name: str, value: int = MIN_TIMESTAMP) -> None:
        self.name = name
        self.value: int = value
        self.percentiles: dict[int, int] = {}
        self.moved: dict[Share[M], None] = {}
        self._shares: dict[M, Share[M]] = {}
        self._working = MinTracker()
        """The watermarks of the members that take part in the minimum. Missing members are at minus infinity."""

    # Reports.

    def report(self, report: WatermarkReport, now: int) -> Share[M] | Refusal | None:
        """Apply a report from exactly the accepted member and sequencer.

        Return the share if journaled state changed, None if not, or the refusal.
        """
        share = self._shares.get(report.member)  # type: ignore[arg-type]  # a group has one kind of members
        if share is None or share.sequencer != report.sequencer:
            return Refusal(report, self._is_superseded(report))
        if not share.note(report, now) or (self.of_processes and share.watermark == MAX_TIMESTAMP):
            return None  # overtaken; or finished, which is final
        watermark = report.watermark if report.watermark > self.value else self.value
        idle = report.idle and self.of_processes
        if watermark == share.watermark and idle == share.idle:
            return None
        self._set(share, watermark, idle)
        self.moved[share] = None
        return share

    def _set(self, share: Share[M], watermark: int, idle: bool = False) -> None:
        working = self._working
        working.add(watermark)
        if not share.idle:
            working.remove(share.watermark)
        share.watermark, share.idle = watermark, idle
        if idle:
            self._becomes_idle()
            working.remove(watermark)

    def rise(self) -> bool:
        """Decide a larger value if the members allow one. Return whether it is larger."""
        smallest = self.smallest()
        if smallest <= self.value:
            return False
        self.value = smallest
        return True

    def smallest(self) -> int:
        """The minimum over all members, up to which ``value`` may rise."""
        least = self._working.min()
        return self._at_rest() if least == MAX_TIMESTAMP else least

    # The journal.

    def take_moved(self, entry: AuthorityEntry, size: int) -> int:
        """Move rows of about ``size`` bytes from ``moved`` to ``entry``. Return their size."""
        keys: list[KeysRow] = []
        processes: list[ProcessRow] = []
        used = 0
        for share in list(self.moved):
            if used >= size:
                break
            row = journal_row(share)
            if isinstance(row, ProcessRow):
                processes.append(row)
            else:
                keys.append(row)
            used += row_size(row)
            del self.moved[share]
        if keys:
            entry.keys[self.name] = keys
        if processes:
            entry.processes[self.name] = processes
        return used

    # The members.

    def _put(self, share: Share[M]) -> None:
        self._shares[share.member] = share
        if not share.idle:
            self._working.add(share.watermark)

    def _drop(self, share: Share[M]) -> None:
        """Forget a share. Another one has its value, or none needs it."""
        del self._shares[share.member]
        self.moved.pop(share, None)
        if not share.idle:
            self._working.remove(share.watermark)

    @abstractmethod
    def _is_superseded(self, report: WatermarkReport) -> bool:
        """Whether the owner of a refused report has a successor. Otherwise the owner was never accepted."""

    def _at_rest(self) -> int:
        """The minimum if no member takes part below plus infinity."""
        return MAX_TIMESTAMP

    def _becomes_idle(self) -> None:
        """A member becomes idle. Its last watermark still takes part in the minimum."""


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
