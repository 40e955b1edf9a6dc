"""The values of one group: of its members, and their minimum, until they are journaled (7.2; G4, G7).

A single report passes only this file of a group. Reports by columns pass :mod:`millwheel.authority.keyed`, which has
the same fence: change both. Which members there are is decided there for key intervals, and in
:mod:`millwheel.authority.injected` for the processes of an injector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import islice
from typing import ClassVar, Final, Generic

from millwheel.authority.journal import AuthorityEntry, KeysRow, ProcessRow
from millwheel.authority.members import AnyMemberState, MemberState, MemberT, Refusal, state_key
from millwheel.authority.minimum import SlotMinimum
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.watermarks import WatermarkReport

__all__ = ["Group", "journal_row", "row_size"]

_ROW_BYTES: Final = 32
"""The approximate size of a row in bytes, without its keys or name."""


class Group(ABC, Generic[MemberT]):
    """The members of one group, and the minimum of their watermarks.

    ``value`` is decided but not necessarily journaled. ``percentiles`` are decided percentile watermarks, by percentile
    in hundredths of a percent. Invariant: none of these values goes back (G7).

    ``changed_states``: the states of members whose newest value no entry has.
    """

    __slots__ = ("_minimum", "_states", "changed_states", "name", "percentiles", "value")

    of_processes: ClassVar[bool] = False
    """Whether the members are processes: they may be idle, and for them plus infinity is final."""

    def __init__(self, name: str, value: int = MIN_TIMESTAMP) -> None:
        self.name = name
        self.value: int = value
        self.percentiles: dict[int, int] = {}
        self.changed_states: dict[MemberState[MemberT], None] = {}
        self._states: dict[bytes | str, MemberState[MemberT]] = {}
        """The members by :func:`~millwheel.authority.members.state_key`."""
        self._minimum = SlotMinimum()
        """The watermarks of the members, each in the slot of its state. Idle members have MAX_TIMESTAMP there."""

    # Reports.

    def report(self, report: WatermarkReport, now: int) -> MemberState[MemberT] | Refusal | None:
        """Apply a report from exactly the accepted member and sequencer.

        Return the member's state if journaled state changed, None if not, or the refusal.
        """
        state = self._states.get(state_key(report.member))
        if state is None or state.sequencer != report.sequencer or state.member != report.member:
            return Refusal(report, self._is_superseded(report))
        if not state.note(report.number, report.input_watermark, report.hold, report.subject, now):
            return None  # overtaken
        if report.pending is not None:
            state.pending, state.pending_at = report.pending, now
        if self.of_processes and state.watermark == MAX_TIMESTAMP:
            return None  # finished, which is final
        watermark = report.watermark if report.watermark > self.value else self.value
        idle = report.idle and self.of_processes
        if watermark == state.watermark and idle == state.idle:
            return None
        self._set(state, watermark, idle)
        self.changed_states[state] = None
        return state

    def _set(self, state: MemberState[MemberT], watermark: int, idle: bool = False) -> None:
        state.watermark, state.idle = watermark, idle
        self._minimum.set(state.slot, watermark)
        if idle:
            self._becomes_idle()
            self._minimum.set(state.slot, MAX_TIMESTAMP)

    def rise(self) -> bool:
        """Decide a larger value if the members allow one. Return whether it is larger."""
        smallest = self.smallest()
        if smallest <= self.value:
            return False
        self.value = smallest
        return True

    def smallest(self) -> int:
        """The minimum over all members, up to which ``value`` may rise."""
        least = self._minimum.least()
        return self._at_rest() if least == MAX_TIMESTAMP else least

    # The journal.

    def take_changed_states(self, entry: AuthorityEntry, size: int) -> int:
        """Move rows of about ``size`` bytes from ``changed_states`` to ``entry``. Return their size."""
        keys: list[KeysRow] = []
        processes: list[ProcessRow] = []
        used = 0
        for state in list(islice(self.changed_states, size // _ROW_BYTES + 1)):
            if used >= size:
                break
            row = journal_row(state)
            if isinstance(row, ProcessRow):
                processes.append(row)
            else:
                keys.append(row)
            used += row_size(row)
            del self.changed_states[state]
        if keys:
            entry.keys[self.name] = keys
        if processes:
            entry.processes[self.name] = processes
        return used

    # The members.

    def _put(self, state: MemberState[MemberT]) -> None:
        self._states[state_key(state.member)] = state
        state.slot = self._minimum.add(MAX_TIMESTAMP if state.idle else state.watermark)

    def _drop(self, state: MemberState[MemberT]) -> None:
        """Forget a member. Another one has its value, or none needs it."""
        del self._states[state_key(state.member)]
        self.changed_states.pop(state, None)
        self._minimum.free(state.slot)

    @abstractmethod
    def _is_superseded(self, report: WatermarkReport) -> bool:
        """Whether the owner of a refused report has a successor. Otherwise the owner was never accepted."""

    def _at_rest(self) -> int:
        """The minimum if no member takes part below plus infinity."""
        return MAX_TIMESTAMP

    def _becomes_idle(self) -> None:
        """A member becomes idle. Its last watermark still takes part in the minimum."""


def journal_row(state: AnyMemberState) -> KeysRow | ProcessRow:
    """Return the journal row of a member."""
    member = state.member
    if isinstance(member, str):
        return ProcessRow(member, state.sequencer, state.watermark, state.idle, state.last_report)
    return KeysRow(member.start, member.end, state.sequencer, state.watermark)


def row_size(row: KeysRow | ProcessRow) -> int:
    """Return the approximate size of a row in bytes."""
    if isinstance(row, ProcessRow):
        return _ROW_BYTES + len(row.process)
    return _ROW_BYTES + len(row.start) + len(row.end or b"")
