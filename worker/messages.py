"""Deliveries, events and effects between interval cores and the drivers that run them.

A core takes one event and returns effects (:mod:`millwheel.model.core_protocol`). It performs no effect itself. The
driver performs them against store, network and authority, and reports the results as events.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millwheel.model.core_protocol import Tick
from millwheel.model.deliveries import Delivery, DeliveryOrder
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.store.contract import Append, JournalHead, PartId, StateRow

if TYPE_CHECKING:
    from millwheel.worker.interval.failing_keys import ErrorKind
    from millwheel.worker.interval.hook_meter import SlowBatch

__all__ = [
    "AcceptSequencer",
    "Accepted",
    "Acknowledged",
    "AnswerDelivery",
    "AppendEntry",
    "Appended",
    "AsyncHook",
    "CatalogChanged",
    "CheckSequence",
    "CopyParts",
    "DeleteEntries",
    "DeleteParts",
    "Delivery",
    "DeliveryOrder",
    "Deposed",
    "FenceJournal",
    "FlushStates",
    "Freeze",
    "GiveUp",
    "GroupWatermarks",
    "Halted",
    "HookFailed",
    "HookFinished",
    "HookReport",
    "HooksSlow",
    "IntervalEffect",
    "IntervalEvent",
    "OpenFailed",
    "Opened",
    "OpenedParent",
    "OwnerEffect",
    "Parent",
    "PartsMissing",
    "PartsRead",
    "PartsWritten",
    "PeerEffect",
    "PinJournal",
    "PrepareRelease",
    "ReadSegments",
    "ReadStates",
    "Refused",
    "ReleasePrepared",
    "Report",
    "Resend",
    "SendDelivery",
    "SequenceChecked",
    "SnapshotEvent",
    "SnapshotHoldAnswer",
    "Started",
    "StatesFlushed",
    "StatesRead",
    "StoreEffect",
    "Thaw",
    "Tick",
    "UnpinJournal",
    "WriteParts",
]


def without(values: Sequence[bytes], kept: Container[int]) -> list[bytes]:
    """The column with only the values at the ``kept`` indexes. The others become empty, to free their memory."""
    return [values[index] if index in kept else b"" for index in range(len(values))]


@dataclass(frozen=True, slots=True)
class Parent:
    """A sealed journal whose interval was split or merged into this interval, and the keys that it had."""

    journal: str
    keys: KeyInterval


# Events.


@dataclass(frozen=True, slots=True)
class Started:
    """The core has a driver: the first event. Answered with ``FenceJournal``."""


@dataclass(slots=True)
class OpenedParent:
    """The content that a parent's sealed head names."""

    parent: Parent
    head: JournalHead
    parts: dict[PartId, bytes]
    entries: list[bytes]


@dataclass(slots=True)
class Opened:
    """The journal is fenced. ``parts`` and ``entries`` are those that the head names, in the head's order.

    ``parents`` are included while the head names no base. The journal then has only the changes after its parents'
    state.
    """

    head: JournalHead
    parts: dict[PartId, bytes]
    entries: list[bytes]
    parents: Sequence[OpenedParent] = ()


@dataclass(slots=True)
class OpenFailed:
    """The journal could not be fenced or read, for the given ``reason``. This owner must not run the interval.

    ``damaged``: a stored value that the interval needs is missing or damaged. Another owner could not open it either.
    """

    reason: str
    damaged: bool = False


@dataclass(slots=True)
class Accepted:
    """The authority accepted this owner's sequencer (G4).

    ``watermark``: what was broadcast, or what earlier owners of all these keys have reported if that is higher.
    """

    watermark: int


@dataclass(slots=True)
class Appended:
    """Commit ``commit`` is in the journal, on disk. ``followed``: as in ``Delivery``."""

    commit: int
    followed: bool = False


@dataclass(slots=True)
class Deposed:
    """This owner's sequencer was refused: a larger one owns the interval."""

    reason: str


@dataclass(slots=True)
class Acknowledged:
    """A receiver answered one of this owner's batches: all records except the ``remaining`` indexes are ACKed."""

    token: int
    remaining: Sequence[int] = ()


@dataclass(slots=True)
class Refused:
    """The receiver knows a successor of this owner, or the batch's sequence is retired.

    No effect if the batch is ACKed: then the refused delivery was a late copy.
    """

    token: int
    reason: str


@dataclass(slots=True)
class Resend:
    """Send these batches again, because sending failed or was refused. Their keys' present owner receives them.

    ``tokens`` None: every batch that is not ACKed. ``refused``: for each batch that was refused in part, the indexes of
    that part. These are copies of records that the receiver has already accepted. It has accepted the rest of the
    batch, too. ``full``: batches refused for lack of room. The receiver has accepted everything sent before them, so
    that is not repeated.
    """

    tokens: Sequence[int] | None = None
    refused: Mapping[int, Collection[int]] = field(default_factory=dict)
    full: Collection[int] = ()


@dataclass(slots=True)
class Halted:
    """The batch ``token`` was refused, or lost. A later ``Resend`` names it when it is time to send it again.

    Until then nothing more is sent behind it, because the receiver would refuse that, too (G15).
    """

    token: int


@dataclass(slots=True)
class GroupWatermarks:
    """Broadcast low watermarks by group, with the sequencers behind them. ``followed``: as in ``Delivery``."""

    values: Mapping[str, int]
    sequencers: Mapping[str, Sequence[tuple[KeyInterval | str, int]]] = field(default_factory=dict)
    followed: bool = False


@dataclass(slots=True)
class CatalogChanged:
    """Changes of the catalog that concern this interval.

    ``groups`` are those whose watermarks the input watermark follows now. ``slack`` is, for each sending injector, how
    far its watermark must have passed a record before the opaque id is forgotten, in microseconds of event time. None:
    unchanged. ``retired`` are journals under which no interval sends any more. ``ended_injectors`` and
    ``ended_queries`` are all injector processes (by sender name) and queries that an operator has retired. ``lives``
    is, for each sending injector group, the floor of its stream's present life: its sequencers are not below it.
    ``beside`` are groups that only send ids, or have sent some: their watermarks say which ids are forgotten.
    ``drains`` says whether the topology drains, so that a source reads no more.
    """

    groups: frozenset[str]
    slack: Mapping[str, int] | None = None
    retired: frozenset[str] = frozenset()
    ended_injectors: frozenset[str] = frozenset()
    ended_queries: frozenset[str] = frozenset()
    lives: Mapping[str, int] = field(default_factory=dict)
    beside: frozenset[str] = frozenset()
    drains: bool = False


@dataclass(slots=True)
class StatesRead:
    """The rows of ``keys``, None for a key without a row. ``damaged``: keys with unreadable rows, and reasons."""

    keys: Sequence[bytes]
    rows: Sequence[StateRow | None]
    damaged: Mapping[bytes, str] = field(default_factory=dict)


@dataclass(slots=True)
class StatesFlushed:
    """The rows of flush ``number`` are acknowledged."""

    number: int


@dataclass(slots=True)
class PartsWritten:
    """The parts of the ``WriteParts`` (or ``CopyParts``) ``number`` are acknowledged."""

    number: int


@dataclass(slots=True)
class PartsRead:
    """The base parts that ``ReadSegments`` requested."""

    blobs: dict[PartId, bytes]


@dataclass(slots=True)
class PartsMissing:
    """A base part that ``ReadSegments`` requested is missing or damaged. ``where`` names it, ``why`` gives details."""

    parts: Sequence[PartId]
    where: str
    why: str


@dataclass(slots=True)
class SequenceChecked:
    """The answer to ``CheckSequence``, by a linearizable read: whether the sequence is alive.

    Without a question, ``sequence`` may also be the incarnation of a computation that is not alive.
    """

    sequence: str
    alive: bool


@dataclass(slots=True)
class HookFinished:
    """An asynchronous hook has ended. ``error`` is None if it succeeded."""

    hook: int
    error: BaseException | None


@dataclass(slots=True)
class PrepareRelease:
    """The interval is about to move: reduce what its next owner has to read. Answer ``ReleasePrepared``."""

    request: Any


@dataclass(slots=True)
class PinJournal:
    """The snapshot ``token`` reads the journal: the truncation point must stay. Answer ``SnapshotHoldAnswer``."""

    token: str
    request: Any


@dataclass(slots=True)
class UnpinJournal:
    """The snapshot ``token`` has read the journal, or its time is over. No answer."""

    token: str


@dataclass(slots=True)
class Freeze:
    """Begin no commit until ``Thaw``, for the snapshot ``token``. Answer ``SnapshotHoldAnswer``."""

    token: str
    request: Any


@dataclass(slots=True)
class Thaw:
    """Go on, if it is still the snapshot ``token`` for which no commit begins. Answer ``SnapshotHoldAnswer``."""

    token: str
    request: Any


SnapshotEvent = PinJournal | UnpinJournal | Freeze | Thaw
"""What a snapshot asks of an owner (worker/snapshot_holds.py)."""

IntervalEvent = (
    Started
    | Delivery
    | Opened
    | OpenFailed
    | Accepted
    | Appended
    | Deposed
    | Acknowledged
    | Refused
    | Halted
    | Resend
    | GroupWatermarks
    | CatalogChanged
    | StatesRead
    | StatesFlushed
    | PartsWritten
    | PartsRead
    | PartsMissing
    | SequenceChecked
    | HookFinished
    | PrepareRelease
    | SnapshotEvent
    | Tick
)


# Effects.


@dataclass(slots=True)
class FenceJournal:
    """Fence the journal with this owner's sequencer, and read what its head names. Answer ``Opened`` or
    ``OpenFailed``.

    A child's journal (it has ``parents``) is created if it does not exist, after its parents' journals are sealed.
    """

    journal: str
    sequencer: int
    parents: Sequence[Parent] = ()


@dataclass(slots=True)
class AcceptSequencer:
    """Let the authority accept this owner's sequencer. Answer ``Accepted`` or ``Deposed``."""

    incarnation: IncarnationId
    keys: KeyInterval
    sequencer: int


@dataclass(slots=True)
class AppendEntry:
    """Append to the journal. Answer ``Appended`` or ``Deposed``. After an ambiguous time-out, repeat the same bytes."""

    journal: str
    append: Append


@dataclass(slots=True)
class AnswerDelivery:
    """Answer a delivery. ``outcome`` applies to all its records but ``except_for``, or to ``only`` some of them."""

    delivery: Delivery
    outcome: DeliveryOutcome.ValueType
    except_for: Sequence[int] = ()
    message: str = ""
    only: Sequence[int] = ()

    @property
    def indexes(self) -> Sequence[int]:
        """The indexes of the message to the sender: what one of the two fields has. The outcome says which one."""
        return self.only or self.except_for


@dataclass(slots=True)
class SendDelivery:
    """Send a batch to the owner of ``delivery.journal``. Answer ``Acknowledged``, or ``Resend`` if that failed."""

    delivery: Delivery


@dataclass(slots=True)
class ReadStates:
    """Read state rows. Answer ``StatesRead``."""

    incarnation: IncarnationId
    keys: list[bytes]


@dataclass(slots=True)
class FlushStates:
    """Write state rows behind the journal. Answer ``StatesFlushed``."""

    incarnation: IncarnationId
    journal: str
    sequencer: int
    number: int
    rows: list[StateRow]


@dataclass(slots=True)
class WriteParts:
    """Store parts of a base or of an entry. Answer ``PartsWritten`` when all are acknowledged."""

    journal: str
    number: int
    parts: dict[PartId, bytes]


@dataclass(slots=True)
class ReadSegments:
    """Read base parts. Answer ``PartsRead`` or ``PartsMissing``. ``elsewhere``: parts in a parent's journal."""

    journal: str
    parts: list[PartId]
    elsewhere: Mapping[PartId, str] = field(default_factory=dict)


@dataclass(slots=True)
class CopyParts:
    """Copy base parts from parents' journals into ``journal``, under the given ids. Answer ``PartsWritten``."""

    journal: str
    number: int
    copies: list[tuple[str, PartId, PartId]]


@dataclass(slots=True)
class ReleasePrepared:
    """The next owner has as little to read as possible: ``entries`` above the truncation point."""

    request: Any
    entries: int
    commit: int


@dataclass(slots=True)
class SnapshotHoldAnswer:
    """The answer to a snapshot. ``held``: this owner serves, and does what the snapshot asks.

    ``settled``: nothing that began before is in flight, so the journal stands at ``commit``.
    """

    request: Any
    held: bool
    settled: bool
    commit: int


@dataclass(slots=True)
class CheckSequence:
    """Find out whether a sender's sequence is alive. Answer ``SequenceChecked``."""

    sequence: str


@dataclass(slots=True)
class DeleteEntries:
    """Delete journal entries below ``below``. No answer."""

    journal: str
    below: int


@dataclass(slots=True)
class DeleteParts:
    """Delete parts of a base or of entries. No answer."""

    journal: str
    parts: list[PartId]


@dataclass(slots=True)
class Report:
    """Report to the authority: output and input watermark in microseconds, and what holds the output watermark."""

    incarnation: IncarnationId
    keys: KeyInterval
    sequencer: int
    output: int
    input: int
    hold: HoldKind.ValueType
    subject: str


@dataclass(slots=True)
class AsyncHook:
    """Run an asynchronous hook. Answer ``HookFinished``."""

    hook: int
    coroutine: Coroutine[Any, Any, object]


@dataclass(slots=True)
class GiveUp:
    """Another owner has the interval. Answer ``Deposed``."""

    reason: str


@dataclass(slots=True)
class HookFailed:
    """User code raised an exception. This is only for the log and the operator.

    ``error`` is the exception. ``endless``: the failure policy retries for ever, so only other code can end the
    failure. ``unkeyed``: it retries because a consumer has no key for the work's dead
    letter, or another topology's consumer has none for its production. ``remedy``: what helps, if the usual does not.
    """

    message: str
    hook: str
    kind: ErrorKind
    error: BaseException
    stopped: bool
    endless: bool
    unkeyed: bool = False
    remedy: str = ""


@dataclass(slots=True)
class HooksSlow:
    """Calls of a hook blocked the event loop for long. This is only for the log."""

    batch: SlowBatch


StoreEffect = (
    FenceJournal
    | AppendEntry
    | ReadStates
    | FlushStates
    | WriteParts
    | ReadSegments
    | CopyParts
    | DeleteEntries
    | DeleteParts
)
"""Work for the store."""

PeerEffect = AnswerDelivery | SendDelivery | Report | AcceptSequencer | CheckSequence
"""Messages to senders, consumers, the authority and the coordinator."""

HookReport = HookFailed | HooksSlow
"""What operators learn about hooks."""

OwnerEffect = StoreEffect | PeerEffect | ReleasePrepared | SnapshotHoldAnswer
"""The effects of every owner of a journal: of an interval, and of a stream's log."""

IntervalEffect = OwnerEffect | AsyncHook | GiveUp | HookReport
