"""What the authority knows of one interval or injector process, and the verdicts on what is said of them (7.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from millwheel.authority.journal import ProcessRow
from millwheel.core.keys import KeyInterval
from millwheel.core.time import MIN_TIMESTAMP
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import Member, PendingWork, WatermarkReport

__all__ = [
    "Acceptance",
    "AnyShare",
    "Computation",
    "Explanation",
    "M",
    "Refusal",
    "Share",
    "ShareView",
    "process_share",
]

M = TypeVar("M", KeyInterval, str)


class Share(Generic[M]):
    """One member's part in a computation's minimum.

    ``member`` and ``sequencer`` never change: a new owner is a new share. ``watermark`` and ``idle``
    are journaled, and of processes ``heard``, the largest number of the owner's reports: what was overtaken must not
    put one back to idleness after a restart either. The rest is what the last report said besides, for explain,
    and is gone after a restart. ``reported_at`` None: no report since the sequencer was accepted (or the restart).
    ``pending``: what it had at work when it was last asked.
    """

    __slots__ = (
        "heard",
        "hold",
        "idle",
        "input_watermark",
        "member",
        "pending",
        "pending_at",
        "reported_at",
        "sequencer",
        "subject",
        "watermark",
    )

    def __init__(self, member: M, sequencer: int, watermark: int, *, idle: bool = False) -> None:
        self.member: M = member
        self.sequencer = sequencer
        self.watermark = watermark
        self.idle = idle
        self.input_watermark: int = MIN_TIMESTAMP
        self.hold: HoldKind.ValueType = HoldKind.HOLD_KIND_UNSPECIFIED
        self.subject = ""
        self.reported_at: int | None = None
        self.heard = 0
        self.pending: PendingWork | None = None
        self.pending_at = 0

    def copy_for(self, member: M) -> Share[M]:
        """The same knowledge of a part of the keys."""
        made = Share(member, self.sequencer, self.watermark, idle=self.idle)
        made.input_watermark, made.hold, made.subject = self.input_watermark, self.hold, self.subject
        made.reported_at, made.heard = self.reported_at, self.heard
        return made

    def note(self, report: WatermarkReport, now: int) -> bool:
        """Keep what ``report``, which has just come, says besides the value; False if it was overtaken by a newer one.

        One connection keeps the order of its reports. Of two, the older one's may lie unread while the newer one's
        are taken: its owner was idle then, say, and now is not.
        """
        if report.number < self.heard:
            return False
        self.heard = report.number
        self.input_watermark = report.input_watermark
        self.hold = report.hold
        self.subject = report.subject
        self.reported_at = now
        if report.pending is not None:
            self.pending, self.pending_at = report.pending, now
        return True

    def told(self, since: int) -> PendingWork | None:
        """What the owner has told of its work since ``since``."""
        return self.pending if self.pending_at >= since else None


def process_share(row: ProcessRow) -> Share[str]:
    """The share of a journaled row."""
    share = Share(row.process, row.sequencer, row.watermark, idle=row.idle)
    share.heard = row.heard
    return share


AnyShare = Share[KeyInterval] | Share[str]


class Acceptance(NamedTuple, Generic[M]):
    """A sequencer's share, the shares that it replaces, and what is left of those outside its keys."""

    share: Share[M]
    replaced: Sequence[Share[M]] = ()
    remains: Sequence[Share[M]] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A report that was not taken. ``superseded``: its owner is the owner no more; otherwise it was never accepted."""

    report: WatermarkReport
    superseded: bool


@dataclass(frozen=True, slots=True)
class ShareView:
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
    """Why a computation's watermark stands where it does (G8).

    ``holding`` are rows that the value waits for, ``rows`` all of them, both cut at the limit that was
    asked for; the counts are not cut.
    """

    computation: str
    watermark: int
    holding: Sequence[ShareView]
    rows: Sequence[ShareView]
    holding_count: int
    row_count: int


class Computation(Protocol):
    """What the core asks of a computation, be it made of intervals or of injector processes.

    ``value`` is decided, and not necessarily journaled; it never goes back (G7).
    """

    name: str
    value: int
    percentiles: dict[int, int]
    """What was decided for percentiles, in hundredths of a percent; it never goes back either."""

    def smallest(self) -> int:
        """What the members allow: the value may rise to it. MIN_TIMESTAMP where it may not rise at all."""

    def report(self, report: WatermarkReport, now: int) -> AnyShare | Refusal | None:
        """Take a report: the share if it changed what must be journaled, None if not, or why it is refused."""

    def shares(self) -> Sequence[AnyShare]:
        """All members' shares; a copy."""

    def explain(self, watermark: int, now: int, silent_after: int, limit: int) -> Explanation:
        """The explanation of ``watermark``; members silent for over ``silent_after`` microseconds are called so."""
