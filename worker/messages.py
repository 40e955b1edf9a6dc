"""What goes between interval cores and the shell that drives them: deliveries, events and instructions.

A core takes one event and returns instructions; it performs none of them itself. The shell performs
them against store, network and authority, and comes back with the events that tell how it went.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millwheel.core.keys import KeyInterval
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.store.contract import Append, JournalHead, PartId, StateRow
from millwheel.worker.dedup.ids import DeliveryIds, Sender

if TYPE_CHECKING:
    from millwheel.worker.interval.failing_keys import ErrorKind
    from millwheel.worker.interval.hook_times import SlowBatch

__all__ = [
    "AcceptSequencer",
    "Accepted",
    "Acknowledge",
    "Acknowledged",
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
    "Event",
    "FenceJournal",
    "FlushStates",
    "GiveUp",
    "Halted",
    "HookFailed",
    "HookFinished",
    "HooksSlow",
    "Instruction",
    "OpenFailed",
    "Opened",
    "OpenedParent",
    "Parent",
    "PartsMissing",
    "PartsRead",
    "PartsWritten",
    "PrepareRelease",
    "ReadSegments",
    "ReadStates",
    "Refused",
    "ReleasePrepared",
    "Report",
    "Resend",
    "Send",
    "SenderWatermarks",
    "SequenceChecked",
    "StatesFlushed",
    "StatesRead",
    "Tick",
    "WriteParts",
]


@dataclass(frozen=True, slots=True)
class DeliveryOrder:
    """Where a delivery stands among all that its sender sends to the journal (G15).

    ``number`` is the delivery's own: it rises with every sending under one sequencer. ``after`` is the number of the
    delivery that the receiver must have taken before; 0: this is the oldest of all that the sender has not been ACKed
    for, and needs none. ``pending`` is the least timestamp of this delivery and of all that wait behind it at the
    sender, ``streams`` are the other streams of these. ``asks``: the sender wants to know at once that it was taken.
    """

    number: int
    after: int
    pending: int
    streams: tuple[str, ...] = ()
    asks: bool = False


@dataclass(slots=True, eq=False, weakref_slot=True)
class Delivery:
    """One batch of records of one stream for one interval; the lists are columns of equal length.

    ``channel`` is whatever the shell needs to bring the acknowledgement back; ``token`` is the
    sender's number for the batch. ``order``: None where the sender keeps no order, as injectors do.
    """

    consumer: str
    journal: str
    stream: str
    sender: Sender
    ids: DeliveryIds
    keys: list[bytes]
    values: list[bytes]
    timestamps: list[int]
    token: int = 0
    channel: Any = None
    order: DeliveryOrder | None = None


def without(values: Sequence[bytes], kept: Container[int]) -> list[bytes]:
    """A column with nothing but what is at the ``kept`` indexes: the rest is not to be held here any longer."""
    return [value if index in kept else b"" for index, value in enumerate(values)]


@dataclass(frozen=True, slots=True)
class Parent:
    """A sealed journal that a split or merge made this interval a child of, and the keys that it had."""

    journal: str
    keys: KeyInterval


# Events.


@dataclass(slots=True)
class OpenedParent:
    """What a parent's head, which is sealed, names."""

    parent: Parent
    head: JournalHead
    parts: dict[PartId, bytes]
    entries: list[bytes]


@dataclass(slots=True)
class Opened:
    """The fence holds; ``parts`` and ``entries`` are what the head names, in its order.

    ``parents`` are there as long as the head names no base: then it says only what came after them.
    """

    head: JournalHead
    parts: dict[PartId, bytes]
    entries: list[bytes]
    parents: Sequence[OpenedParent] = ()


@dataclass(slots=True)
class OpenFailed:
    """The journal could not be taken or read; ``reason`` says why, and the interval is not ours to run.

    ``damaged``: a stored value that it relies on is missing or damaged, and no other owner would fare better.
    """

    reason: str
    damaged: bool = False


@dataclass(slots=True)
class Accepted:
    """The authority accepted our sequencer (G4) and last broadcast ``watermark`` for our keys."""

    watermark: int


@dataclass(slots=True)
class Appended:
    """Commit ``commit`` is in the journal, on disk."""

    commit: int


@dataclass(slots=True)
class Deposed:
    """Somebody refused our sequencer: a larger one holds the interval."""

    reason: str


@dataclass(slots=True)
class Acknowledged:
    """A receiver answered for one of our batches: all but ``remaining`` indexes are ACKed."""

    token: int
    remaining: Sequence[int] = ()


@dataclass(slots=True)
class Refused:
    """A receiver knows a successor of ours, or that the batch's sequence is retired.

    It says nothing if the batch is ACKed: then it was a copy that came late.
    """

    token: int
    reason: str


@dataclass(slots=True)
class Resend:
    """Batches whose sending failed or was refused, to be sent again (to wherever their keys live now).

    ``tokens`` None: every batch that is not ACKed. ``refused``: of those of which a part was refused, the indexes of
    that part: copies of records that the receiver has taken. It has taken the rest, too. ``full``: those that were
    refused for want of room. All that was sent before them the receiver has taken, and it is not sent again.
    """

    tokens: Sequence[int] | None = None
    refused: Mapping[int, Collection[int]] = field(default_factory=dict)
    full: Collection[int] = ()


@dataclass(slots=True)
class Halted:
    """The batch ``token`` was refused, or lost. Resend names it when it is time to send it again.

    Until then nothing more is sent behind it: a receiver would refuse that, too (G15).
    """

    token: int


@dataclass(slots=True)
class SenderWatermarks:
    """Broadcast values by sending computation, with the sequencers behind them."""

    values: Mapping[str, int]
    sequencers: Mapping[str, Sequence[tuple[KeyInterval | str, int]]] = field(default_factory=dict)


@dataclass(slots=True)
class CatalogChanged:
    """Who sends to this interval now, by sending injector, how long the ids of late records are to be kept (None: as
    before), and which journals nobody sends under any more.

    ``ended_injectors``, ``ended_queries``: all origins of injector processes, and queries, that are retired by an
    operator's word.
    """

    senders: frozenset[str]
    slack: Mapping[str, int] | None = None
    retired: frozenset[str] = frozenset()
    ended_injectors: frozenset[str] = frozenset()
    ended_queries: frozenset[str] = frozenset()


@dataclass(slots=True)
class StatesRead:
    """The rows of ``keys``; None where there is none. ``damaged``: the keys whose rows cannot be read, and why."""

    keys: Sequence[bytes]
    rows: Sequence[StateRow | None]
    damaged: Mapping[bytes, str] = field(default_factory=dict)


@dataclass(slots=True)
class StatesFlushed:
    """The rows of flush ``number`` are acknowledged."""

    number: int


@dataclass(slots=True)
class PartsWritten:
    """The parts of WriteParts (or CopyParts) ``number`` are acknowledged."""

    number: int


@dataclass(slots=True)
class PartsRead:
    """Base parts asked for by ReadSegments."""

    blobs: dict[PartId, bytes]


@dataclass(slots=True)
class PartsMissing:
    """Of the base parts asked for by ReadSegments one is gone, or damaged: ``where`` names it, ``why`` says more."""

    parts: Sequence[PartId]
    where: str
    why: str


@dataclass(slots=True)
class SequenceChecked:
    """Whether the sequence that CheckSequence asked for lives, by a linearizable read."""

    sequence: str
    alive: bool


@dataclass(slots=True)
class HookFinished:
    """An asynchronous hook has ended; ``error`` None: well."""

    hook: int
    error: BaseException | None


@dataclass(slots=True)
class PrepareRelease:
    """The interval is to change hands: make what its successor has to read small; answer ReleasePrepared."""

    request: Any


@dataclass(slots=True)
class Tick:
    """Nothing but time has passed."""


Event = (
    Delivery
    | Opened
    | OpenFailed
    | Accepted
    | Appended
    | Deposed
    | Acknowledged
    | Refused
    | Halted
    | Resend
    | SenderWatermarks
    | CatalogChanged
    | StatesRead
    | StatesFlushed
    | PartsWritten
    | PartsRead
    | PartsMissing
    | SequenceChecked
    | HookFinished
    | PrepareRelease
    | Tick
)


# Instructions.


@dataclass(slots=True)
class FenceJournal:
    """Fence the journal with our sequencer and read what its head names; answer Opened or OpenFailed.

    The journal of a child (it has ``parents``) is created if it does not exist, after its parents' are sealed.
    """

    journal: str
    sequencer: int
    parents: Sequence[Parent] = ()


@dataclass(slots=True)
class AcceptSequencer:
    """Have the authority accept our sequencer; answer Accepted or Deposed."""

    computation: str
    keys: KeyInterval
    sequencer: int


@dataclass(slots=True)
class AppendEntry:
    """Append; answer Appended or Deposed. An ambiguous time-out is repeated with the identical bytes."""

    journal: str
    append: Append


@dataclass(slots=True)
class Acknowledge:
    """Answer a delivery: ``outcome`` for all its records but ``remaining`` (or, refused as full, for those alone)."""

    delivery: Delivery
    outcome: DeliveryOutcome.ValueType
    remaining: Sequence[int] = ()
    message: str = ""


@dataclass(slots=True)
class Send:
    """Bring a batch to the owner of ``delivery.journal``; answer Acknowledged, or Resend where that failed."""

    delivery: Delivery


@dataclass(slots=True)
class ReadStates:
    """Read state rows; answer StatesRead."""

    computation: str
    keys: list[bytes]


@dataclass(slots=True)
class FlushStates:
    """Write state rows behind the journal; answer StatesFlushed."""

    computation: str
    journal: str
    sequencer: int
    number: int
    rows: list[StateRow]


@dataclass(slots=True)
class WriteParts:
    """Store parts of a base or of an entry; answer PartsWritten when all are acknowledged."""

    journal: str
    number: int
    parts: dict[PartId, bytes]


@dataclass(slots=True)
class ReadSegments:
    """Read base parts; answer PartsRead, or PartsMissing. ``elsewhere``: those that are in a parent's journal."""

    journal: str
    parts: list[PartId]
    elsewhere: Mapping[PartId, str] = field(default_factory=dict)


@dataclass(slots=True)
class CopyParts:
    """Copy base parts from parents' journals into ``journal``, under the ids given; answer PartsWritten."""

    journal: str
    number: int
    copies: list[tuple[str, PartId, PartId]]


@dataclass(slots=True)
class ReleasePrepared:
    """What a successor has to read is small, or as small as it gets: ``entries`` above the floor."""

    request: Any
    entries: int
    commit: int


@dataclass(slots=True)
class CheckSequence:
    """Find out whether a sender's sequence lives; answer SequenceChecked."""

    sequence: str


@dataclass(slots=True)
class DeleteEntries:
    """Forget journal entries below ``below``. No answer is needed."""

    journal: str
    below: int


@dataclass(slots=True)
class DeleteParts:
    """Forget parts of a base or of entries. No answer is needed."""

    journal: str
    parts: list[PartId]


@dataclass(slots=True)
class Report:
    """Report to the authority: output and input watermark, and what holds the output."""

    computation: str
    keys: KeyInterval
    sequencer: int
    output: int
    input: int
    hold: HoldKind.ValueType
    subject: str


@dataclass(slots=True)
class AsyncHook:
    """Run user code that waits; answer HookFinished."""

    hook: int
    coroutine: Coroutine[Any, Any, object]


@dataclass(slots=True)
class GiveUp:
    """Somebody else owns the interval; answer Deposed."""

    reason: str


@dataclass(slots=True)
class HookFailed:
    """User code raised: for the log and the operator. Nothing else needs doing.

    ``error`` is what it raised. ``endless``: the failure policy tries again for ever, so that only other code ends it.
    """

    message: str
    hook: str
    kind: ErrorKind
    error: BaseException
    stopped: bool
    endless: bool


@dataclass(slots=True)
class HooksSlow:
    """Calls of a hook kept the event loop for long: for the log. Nothing else needs doing."""

    batch: SlowBatch


Instruction = (
    FenceJournal
    | AcceptSequencer
    | AppendEntry
    | Acknowledge
    | Send
    | ReadStates
    | FlushStates
    | WriteParts
    | ReadSegments
    | CopyParts
    | ReleasePrepared
    | CheckSequence
    | DeleteEntries
    | DeleteParts
    | Report
    | AsyncHook
    | GiveUp
    | HookFailed
    | HooksSlow
)
