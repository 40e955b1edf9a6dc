"""Input and output of the master's core: requests, events and effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millwheel.coordination.contract import Compare, KeyChange, PrefixSnapshot, Put, TransactionResult
from millwheel.model.core_protocol import Tick
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = [
    "AbandonRestore",
    "Answer",
    "BeginRestore",
    "CancelTopology",
    "CommitBatch",
    "CreateJournals",
    "DrainTopology",
    "Drop",
    "EnsureLog",
    "Fail",
    "FinishInjector",
    "IntervalName",
    "IntervalProgress",
    "Intervals",
    "JournalsCreated",
    "LoadsMeasured",
    "MasterEffect",
    "MasterEvent",
    "MergeIntervals",
    "MoveInterval",
    "NumbersReserved",
    "Observe",
    "OpenInjector",
    "PauseTopology",
    "Progress",
    "ProgressObserved",
    "RecordEvent",
    "ReleaseParents",
    "Reload",
    "Reply",
    "Request",
    "RequestReceived",
    "ReserveNumbers",
    "ReshapeRequest",
    "RestoreTopology",
    "ResumeTopology",
    "RetireInjector",
    "RetireQuery",
    "RevisionArrived",
    "SetTopologyQuota",
    "SnapshotLoaded",
    "SplitInterval",
    "StateDropped",
    "StepDown",
    "StoreFailed",
    "SubmitTopology",
    "Tick",
    "Transact",
    "TransactionEnded",
    "UpdateTopology",
]


# Requests.


@dataclass(frozen=True, slots=True)
class SubmitTopology:
    """Run a topology. The same ``request_id`` with the same spec is the same submission."""

    spec: specs.TopologySpec
    request_id: str


@dataclass(frozen=True, slots=True)
class DrainTopology:
    """Stop injection, process everything pending, and keep the topology's state."""

    name: str


@dataclass(frozen=True, slots=True)
class CancelTopology:
    """Stop a topology at once and give up its state. A repeated ``request_id`` does not end a later topology."""

    name: str
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class UpdateTopology:
    """Make a new version of a topology if it still has ``expected_version`` (0: any version)."""

    spec: specs.TopologySpec
    request_id: str = ""
    expected_version: int = 0


@dataclass(frozen=True, slots=True)
class PauseTopology:
    """Remove the owners of a topology's intervals. Everything is kept."""

    name: str


@dataclass(frozen=True, slots=True)
class ResumeTopology:
    """Assign owners to the intervals of a paused topology again."""

    name: str


@dataclass(frozen=True, slots=True)
class BeginRestore:
    """Note what a restore is about to write, so that it is dropped if the restore comes to no end."""

    number: int
    record: catalog.RestoreRecord


@dataclass(frozen=True, slots=True)
class AbandonRestore:
    """Drop what a restore has written, unless its topology exists. Later, its ``RestoreTopology`` is refused."""

    number: int


@dataclass(frozen=True, slots=True)
class RestoreTopology:
    """Make a topology of a snapshot. The store has its journals and states already.

    ``number``: that of its ``BeginRestore``, which the same core has answered.
    ``maps``: the interval map of each incarnation in ``record`` and ``logs``, without owners. ``drawn``: all numbers in
    the journals are at most this one, so every sequencer is larger that is drawn later. ``renamed``: whether it had
    another name in the snapshot.
    """

    number: int
    record: catalog.TopologyRecord
    maps: Mapping[IncarnationId, catalog.IntervalMapRecord]
    logs: tuple[catalog.StreamLogRecord, ...]
    batches: tuple[catalog.BatchCursorRecord, ...]
    drawn: int
    renamed: bool = False


@dataclass(frozen=True, slots=True)
class SetTopologyQuota:
    """Change what a topology may take of the cluster."""

    name: str
    quota: catalog.TopologyQuota


@dataclass(frozen=True, slots=True)
class EnsureLog:
    """Give a stream a log, if it has none."""

    stream: str


@dataclass(frozen=True, slots=True)
class DeleteLog:
    """End the log of a stream that computations read, too.

    ``incarnation``: the one that has no cursors. Another one is not deleted. Empty: there was none. None: whichever
    there is.
    """

    stream: str
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class OpenInjector:
    """Draw a sequencer for an injector process. Older processes of that name become invalid.

    ``knows_id_stream``: whether it hashes ids within the name that its routing gives.
    """

    stream: str
    process: str
    knows_id_stream: bool = True


@dataclass(frozen=True, slots=True)
class FinishInjector:
    """The process never sends another record. Ignored unless ``sequencer`` is its newest."""

    stream: str
    process: str
    sequencer: int


@dataclass(frozen=True, slots=True)
class RetireInjector:
    """Forget the receivers' duplicate-check state of a finished process, at an operator's request.

    ``sequencer``: that of the finished incarnation which the operator saw, 0 if there was none. A newer one may still
    be running.
    """

    stream: str
    process: str
    sequencer: int


@dataclass(frozen=True, slots=True)
class RetireQuery:
    """No process continues ``query``: forget its cursor, and the receivers' duplicate-check state of its batches."""

    query: str


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """Every batch of ``query`` up to ``batch`` is complete. Invariant: the cursor never goes back."""

    query: str
    batch: int


@dataclass(frozen=True, slots=True)
class IntervalName:
    """Names an interval: by its journal, by a key in it, or by neither if its computation has only one."""

    topology: str = ""
    computation: str = ""
    journal: str = ""
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class MoveInterval:
    """Assign an interval to ``worker``, or to the least loaded suitable worker if that is empty.

    ``expected``: the sequencer that the interval must still have, 0 for any. Decisions by load set it.
    """

    interval: IntervalName
    worker: str = ""
    request_id: str = ""
    expected: int = 0


@dataclass(frozen=True, slots=True)
class SplitInterval:
    """Split an interval at a key. ``worker`` becomes the owner of the upper half; empty: the owner of the whole."""

    interval: IntervalName
    at: bytes
    worker: str = ""
    request_id: str = ""
    expected: int = 0


@dataclass(frozen=True, slots=True)
class MergeIntervals:
    """Merge an interval with the next one. ``worker`` becomes the owner; empty: the owner of the named interval."""

    interval: IntervalName
    worker: str = ""
    request_id: str = ""
    expected: int = 0


@dataclass(frozen=True, slots=True)
class ReleaseParents:
    """The owners of these intervals no longer need the parents.

    Maps each journal to the sequencer that reported this.
    """

    independent: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Put an event into the log that no other change explains. Its number is chosen by the core."""

    event: catalog.EventRecord


ReshapeRequest = MoveInterval | SplitInterval | MergeIntervals

Request = (
    SubmitTopology
    | DrainTopology
    | CancelTopology
    | UpdateTopology
    | PauseTopology
    | SetTopologyQuota
    | ResumeTopology
    | BeginRestore
    | AbandonRestore
    | RestoreTopology
    | EnsureLog
    | DeleteLog
    | OpenInjector
    | FinishInjector
    | RetireInjector
    | CommitBatch
    | RetireQuery
    | ReshapeRequest
    | ReleaseParents
    | RecordEvent
)


@dataclass(frozen=True, slots=True)
class Intervals:
    """The intervals that a change of an interval map has made."""

    intervals: tuple[catalog.IntervalRecord, ...]


Answer = (
    catalog.TopologyRecord
    | control.EnsureStreamLogResponse
    | control.DeleteStreamLogResponse
    | catalog.InjectorRecord
    | catalog.BatchCursorRecord
    | Intervals
    | catalog.RestoreRecord
)


# What the driver observed of a draining topology.


@dataclass(frozen=True, slots=True)
class IntervalProgress:
    """The report of an interval's owner. ``pending`` counts productions without an ACK."""

    sequencer: int
    commit: int
    queued: int
    pending: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Broadcast low watermarks by incarnation, and intervals' reports by journal. A missing entry: no answer came."""

    topology: str
    watermarks: Mapping[str, int] = field(default_factory=dict)
    intervals: Mapping[str, IntervalProgress] = field(default_factory=dict)


# Events.


@dataclass(frozen=True, slots=True)
class SnapshotLoaded:
    """The coordinator's contents were read. ``operation``: that of the ``Reload`` that this answers, 0 if of none.

    Such a read began after the ``Reload``.
    """

    snapshot: PrefixSnapshot
    operation: int = 0


@dataclass(frozen=True, slots=True)
class RevisionArrived:
    """The coordinator's contents have changed by one revision."""

    changes: tuple[KeyChange, ...]


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A request has arrived. A ``Reply`` or ``Fail`` with the same ticket follows later."""

    ticket: int
    request: Request
    actor: str = ""
    """Who makes the request: a caller's name or host. Empty: the master itself."""


@dataclass(frozen=True, slots=True)
class StateDropped:
    """The ``Drop`` effect is complete."""

    operation: int


@dataclass(frozen=True, slots=True)
class JournalsCreated:
    """The ``CreateJournals`` effect is complete: all journals are new."""

    operation: int


@dataclass(frozen=True, slots=True)
class NumbersReserved:
    """``ReserveNumbers`` is done: this term alone may draw the numbers from ``first`` to ``last``."""

    operation: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """``ReserveNumbers``, ``Drop`` or ``CreateJournals`` failed, or a journal to create exists already (``retry``).

    An existing journal was created for a transaction that failed. It is left alone, and other numbers are drawn.
    """

    operation: int
    why: str
    retry: bool


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """``Transact`` has an outcome. None: it is unknown whether the transaction took effect."""

    operation: int
    outcome: TransactionResult | None


@dataclass(frozen=True, slots=True)
class ProgressObserved:
    """The ``Observe`` effect is complete."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class LoadsMeasured:
    """The cost of intervals by journal, in cores. It is used for every later choice of an owner."""

    loads: Mapping[str, float]


MasterEvent = (
    SnapshotLoaded
    | RevisionArrived
    | RequestReceived
    | StateDropped
    | NumbersReserved
    | JournalsCreated
    | StoreFailed
    | TransactionEnded
    | ProgressObserved
    | LoadsMeasured
    | Tick
)


# Effects. An event that carries the same ``operation`` reports the end of each one that has an operation.


@dataclass(frozen=True, slots=True)
class ReserveNumbers:
    """Reserve a block of sequencers above ``above`` in the store. A plan needs numbers that are not reserved yet."""

    operation: int
    above: int


@dataclass(frozen=True, slots=True)
class CreateJournals:
    """Create these journals, each of which must be new."""

    operation: int
    journals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Transact:
    """One transaction of the coordinator."""

    operation: int
    compares: tuple[Compare, ...]
    puts: tuple[Put, ...]
    deletes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete journals and incarnations' state from the store, and delete the incarnations at the authority.

    The authority also forgets each group in ``injectors``, up to its sequencer. Idempotent: a late repetition is safe.
    """

    operation: int
    journals: tuple[str, ...]
    incarnations: tuple[IncarnationId, ...]
    injectors: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Reload:
    """List every key of the coordinator. ``SnapshotLoaded`` reports the result, and repeats the operation."""

    operation: int


@dataclass(frozen=True, slots=True)
class Observe:
    """Request a draining topology's progress from workers and authority. ``ProgressObserved`` reports it."""

    topology: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A request has succeeded durably."""

    ticket: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Fail:
    """A request was refused, or could not be carried out."""

    ticket: int
    error: RequestError


@dataclass(frozen=True, slots=True)
class StepDown:
    """Another master leads: this core does nothing more."""

    reason: str


MasterEffect = ReserveNumbers | CreateJournals | Transact | Drop | Reload | Observe | Reply | Fail | StepDown
