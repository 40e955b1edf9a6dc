"""The authority's state of one interval or injector process, and the outcome of reports about it (7.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from millwheel.authority.journal import ProcessRow
from millwheel.model.keys import KeyInterval
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, seconds
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import Member, PendingWork, WatermarkReport

__all__ = [
    "AnyMemberState",
    "Explanation",
    "MemberState",
    "MemberT",
    "MemberView",
    "Refusal",
    "process_state",
    "state_key",
]

MemberT = TypeVar("MemberT", KeyInterval, str)

_SILENT_AFTER: Final = seconds(30)
"""A member without a report for longer than this is called silent."""


class MemberState(Generic[MemberT]):
    """One member's part in a group's minimum.

    Invariant: ``member`` and ``sequencer`` never change. A new owner gets a new state.

    ``watermark`` and ``idle`` are journaled. For injector processes, ``last_report`` is journaled too.
    It is the largest number of the owner's reports. It keeps an overtaken report from making a process idle again
    after a restart.

    The other fields come from the last report, serve ``explain``, and are lost at a restart. ``reported_at`` is None
    if there was no report since the sequencer was accepted, or since the restart. ``pending`` is the pending work
    that the owner last published. ``slot`` is its place in the group's minimum; its group sets it.
    """

    __slots__ = (
        "hold",
        "idle",
        "input_watermark",
        "last_report",
        "member",
        "pending",
        "pending_at",
        "reported_at",
        "sequencer",
        "slot",
        "subject",
        "watermark",
    )

    def __init__(self, member: MemberT, sequencer: int, watermark: int, *, idle: bool = False) -> None:
        self.member: MemberT = member
        self.sequencer = sequencer
        self.watermark = watermark
        self.idle = idle
        self.slot = -1
        self.input_watermark: int = MIN_TIMESTAMP
        self.hold: HoldKind.ValueType = HoldKind.HOLD_KIND_UNSPECIFIED
        self.subject = ""
        self.reported_at: int | None = None
        self.last_report = 0
        self.pending: PendingWork | None = None
        self.pending_at = 0

    def copy_for(self, member: MemberT) -> MemberState[MemberT]:
        """Return a copy of this state for ``member``, which is a part of its keys."""
        made = MemberState(member, self.sequencer, self.watermark, idle=self.idle)
        made.input_watermark, made.hold, made.subject = self.input_watermark, self.hold, self.subject
        made.reported_at, made.last_report = self.reported_at, self.last_report
        return made

    def note(self, number: int, input_watermark: int, hold: HoldKind.ValueType, subject: str, now: int) -> bool:
        """Record fields of a received report other than its value. Return False if a newer report overtook it.

        One connection keeps the order of its reports, but two connections do not. The older connection's reports may
        be read after the newer one's. An example is a report of idleness from an owner that works again.
        """
        if number < self.last_report:
            return False
        self.last_report = number
        self.input_watermark = input_watermark
        self.hold = hold
        self.subject = subject
        self.reported_at = now
        return True

    def pending_since(self, since: int) -> PendingWork | None:
        """Return the pending work that the owner published since ``since``."""
        return self.pending if self.pending_at >= since else None

    def view(self, now: int) -> MemberView:
        """Return this member's row of an explanation. A silent interval or process holds the value by its silence."""
        silence = None if self.reported_at is None else max(0, now - self.reported_at)
        silent = silence is None or silence > _SILENT_AFTER
        hold, subject, member = self.hold, self.subject, self.member
        if not isinstance(member, str):
            hold = HoldKind.HOLD_KIND_SILENT if silent else hold
        elif self.idle or (silent and self.watermark != MAX_TIMESTAMP):
            hold, subject = HoldKind.HOLD_KIND_INJECTOR, member
        return MemberView(
            member, self.sequencer, self.watermark, self.input_watermark, hold, subject, self.idle, silence
        )


def state_key(member: Member) -> bytes | str:
    """Return what a group finds a member by: the first key of an interval, or the name of a process.

    The intervals of a group are disjoint, so no two of them have the same first key.
    """
    return member if isinstance(member, str) else member.start


def process_state(row: ProcessRow) -> MemberState[str]:
    """Return the state of a journaled row."""
    state = MemberState(row.process, row.sequencer, row.watermark, idle=row.idle)
    state.last_report = row.last_report
    return state


AnyMemberState = MemberState[KeyInterval] | MemberState[str]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused report. ``superseded``: a newer owner exists. Otherwise the owner was never accepted."""

    report: WatermarkReport
    superseded: bool


@dataclass(frozen=True, slots=True)
class MemberView:
    """One row of an explanation. ``silence``: microseconds since the last report, None if there was none."""

    member: Member
    sequencer: int
    watermark: int
    input_watermark: int
    hold: HoldKind.ValueType
    subject: str
    idle: bool
    silence: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a group's watermark has its value (G8).

    ``holding`` are the rows that hold the value back, and ``rows`` are all of them. Both are cut at the requested
    limit. The counts are not cut.
    """

    group: str
    watermark: int
    holding: Sequence[MemberView]
    rows: Sequence[MemberView]
    holding_count: int
    row_count: int
