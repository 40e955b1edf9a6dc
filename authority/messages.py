"""Events and effects of an authority shard's core (7.2).

A *token* is the driver's number of a call. The call is answered by one effect with its token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from millwheel.authority.base import BaseSnapshot
from millwheel.authority.members import Refusal
from millwheel.model.core_protocol import Tick
from millwheel.rpc.report_columns import ReportColumns
from millwheel.rpc.watermarks import Member, WatermarkReport
from millwheel.store.contract import Append, PartId

__all__ = [
    "AnswerCall",
    "AppendChanges",
    "AppendJournaled",
    "AuthorityEffect",
    "AuthorityEvent",
    "BroadcastValues",
    "DeleteJournaled",
    "InjectorsExpected",
    "PercentileRequested",
    "RefuseCall",
    "RefuseReport",
    "RemovalRequested",
    "ReportsReceived",
    "SequencerOffered",
    "SnapshotWritten",
    "Tick",
    "WriteSnapshot",
]


# Events.


@dataclass(frozen=True, slots=True)
class SequencerOffered:
    """Accept ``sequencer`` as the owner of ``member`` from now on (G4).

    Answered once the acceptance is journaled. With ``report_number`` (injector processes only), the answer also
    confirms that the process's reports up to that number are journaled.

    Refused with AcceptRefusedError if a larger sequencer owns any part of the member, or if the group was
    removed. An injector counts as removed only if this sequencer belongs to a removed incarnation. Refused with
    ReportNotReceivedError if neither that report nor a later one was received.
    """

    token: int
    group: str
    member: Member
    sequencer: int
    report_number: int = 0


@dataclass(frozen=True, slots=True)
class ReportsReceived:
    """The owners' reports, in order (7.2). Each refused one is answered with ``RefuseReport`` at once.

    ``columns``: the reports of many intervals, by group. They come after the others.
    """

    reports: Iterable[WatermarkReport] = ()
    columns: Iterable[ReportColumns] = ()


@dataclass(frozen=True, slots=True)
class InjectorsExpected:
    """Make ``stream``'s watermark wait for exactly ``processes`` (5.2). Answered once the change is journaled.

    An empty set means all processes that announce themselves. With a set that is not empty, other processes are
    forgotten. ``as_of`` is the coordinator's revision at which the set was read. Nothing changes if the set of a newer
    revision is known.
    """

    token: int
    stream: str
    processes: Iterable[str]
    as_of: int = 0


@dataclass(frozen=True, slots=True)
class RemovalRequested:
    """Forget a cancelled group. Answered once the removal is journaled.

    ``up_to``: for an injector, the largest sequencer of the incarnation that is over. Idempotent: a repeated removal
    does not delete a re-created injector, whose expected set may be known before any of its sequencers.
    """

    token: int
    group: str
    up_to: int = 0


@dataclass(frozen=True, slots=True)
class PercentileRequested:
    """Decide a percentile watermark of ``group``, which ignores its smallest timestamps at work (7.2).

    ``basis_points``: 9900 ignores one timestamp in a hundred. Only work published since ``since`` counts; ``since`` is
    a time of the core's clock. Answered with the value once it is journaled. Refused with KeyError if the group
    is unknown.
    """

    token: int
    group: str
    basis_points: int
    since: int


@dataclass(frozen=True, slots=True)
class AppendJournaled:
    """The append in flight is journaled."""


@dataclass(frozen=True, slots=True)
class SnapshotWritten:
    """All parts of ``snapshot`` are acknowledged. The next append names them."""

    snapshot: BaseSnapshot


AuthorityEvent = (
    SequencerOffered
    | ReportsReceived
    | InjectorsExpected
    | RemovalRequested
    | PercentileRequested
    | AppendJournaled
    | SnapshotWritten
    | Tick
)


# Effects.


@dataclass(frozen=True, slots=True)
class AppendChanges:
    """Append to the journal. Answer ``AppendJournaled``, or stop the shard if the append was refused.

    Repeat the append byte for byte until its outcome is known.
    """

    append: Append


@dataclass(frozen=True, slots=True)
class AnswerCall:
    """The call has succeeded, and is journaled. ``watermark``: the value to answer."""

    token: int
    watermark: int


@dataclass(frozen=True, slots=True)
class RefuseCall:
    """The call was refused, and has changed nothing."""

    token: int
    error: Exception


@dataclass(frozen=True, slots=True)
class RefuseReport:
    """A report was refused."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class BroadcastValues:
    """Broadcast these journaled values, and the sequencers accepted since the last append."""

    values: Mapping[str, int]
    sequencers: Sequence[tuple[str, Member, int]]


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Write the snapshot's parts. Answer ``SnapshotWritten``."""

    snapshot: BaseSnapshot


@dataclass(frozen=True, slots=True)
class DeleteJournaled:
    """Delete the entries below ``below``, and these parts. No restart reads them any more. No answer."""

    below: int
    parts: Sequence[PartId]


AuthorityEffect = (
    AppendChanges | AnswerCall | RefuseCall | RefuseReport | BroadcastValues | WriteSnapshot | DeleteJournaled
)
