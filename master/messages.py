"""What goes into the master's core and what comes out: requests, observations and instructions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millwheel.coordination.contract import Compare, Put
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = [
    "Answer",
    "CancelTopology",
    "CommitBatch",
    "CreateJournals",
    "DrainTopology",
    "Drop",
    "EnsureLog",
    "Fail",
    "FinishInjector",
    "Instruction",
    "IntervalName",
    "IntervalProgress",
    "Intervals",
    "MergeIntervals",
    "MoveInterval",
    "Observe",
    "OpenInjector",
    "PauseTopology",
    "Progress",
    "ReleaseParents",
    "Reload",
    "Reply",
    "Request",
    "Reshape",
    "ResumeTopology",
    "RetireInjector",
    "RetireQuery",
    "SplitInterval",
    "StepDown",
    "SubmitTopology",
    "Transact",
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
    """Let a topology run out, and keep its state."""

    name: str


@dataclass(frozen=True, slots=True)
class CancelTopology:
    """Stop a topology at once, and give up its state. The same ``request_id`` again ends nothing that came after."""

    name: str
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class UpdateTopology:
    """Make a new version of a topology, if it still has ``expected_version`` (0: whatever it has)."""

    spec: specs.TopologySpec
    request_id: str = ""
    expected_version: int = 0


@dataclass(frozen=True, slots=True)
class PauseTopology:
    """Take the owners from a topology's intervals; everything is kept."""

    name: str


@dataclass(frozen=True, slots=True)
class ResumeTopology:
    """Give the intervals of a paused topology owners again."""

    name: str


@dataclass(frozen=True, slots=True)
class EnsureLog:
    """Give a stream a log, if it has none."""

    stream: str


@dataclass(frozen=True, slots=True)
class OpenInjector:
    """Draw a sequencer for an injector process: older ones of that name are dead."""

    stream: str
    process: str


@dataclass(frozen=True, slots=True)
class FinishInjector:
    """The process will send nothing more, for good. Ignored unless ``sequencer`` is its newest."""

    stream: str
    process: str
    sequencer: int


@dataclass(frozen=True, slots=True)
class RetireInjector:
    """What receivers know of a finished process's records may be forgotten, by an operator's word.

    ``sequencer``: of its life that was seen to be over, 0 if there was none: another one may not be.
    """

    stream: str
    process: str
    sequencer: int


@dataclass(frozen=True, slots=True)
class RetireQuery:
    """Nobody goes on with ``query``: its cursor, and what receivers know of its batches, may be forgotten."""

    query: str


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """Every batch of ``query`` up to ``batch`` is in. The cursor never goes back."""

    query: str
    batch: int


@dataclass(frozen=True, slots=True)
class IntervalName:
    """An interval: by its journal, by a key in it, or, with neither, as the only one of its computation."""

    topology: str = ""
    computation: str = ""
    journal: str = ""
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class MoveInterval:
    """Give an interval to ``worker``; empty: to the least loaded that may run it.

    ``expected``, unless it is 0: the sequencer that the interval must still have, for whoever decided by its load.
    """

    interval: IntervalName
    worker: str = ""
    request_id: str = ""
    expected: int = 0


@dataclass(frozen=True, slots=True)
class SplitInterval:
    """Cut an interval in two at a key; ``worker`` is to own the upper half, empty: whoever owns the whole."""

    interval: IntervalName
    at: bytes
    worker: str = ""
    request_id: str = ""
    expected: int = 0


@dataclass(frozen=True, slots=True)
class MergeIntervals:
    """Make one of an interval and the next; ``worker`` is to own it, empty: whoever owns the one that is named."""

    interval: IntervalName
    worker: str = ""
    request_id: str = ""
    expected: int = 0


@dataclass(frozen=True, slots=True)
class ReleaseParents:
    """The owners of these intervals need nothing of their parents any more: by journal, the sequencer that said so."""

    independent: Mapping[str, int]


Reshape = MoveInterval | SplitInterval | MergeIntervals

Request = (
    SubmitTopology
    | DrainTopology
    | CancelTopology
    | UpdateTopology
    | PauseTopology
    | ResumeTopology
    | EnsureLog
    | OpenInjector
    | FinishInjector
    | RetireInjector
    | CommitBatch
    | RetireQuery
    | Reshape
    | ReleaseParents
)


@dataclass(frozen=True, slots=True)
class Intervals:
    """What a change of an interval map has made."""

    intervals: tuple[catalog.IntervalRecord, ...]


Answer = (
    catalog.TopologyRecord
    | control.EnsureStreamLogResponse
    | catalog.InjectorRecord
    | catalog.BatchCursorRecord
    | Intervals
)


# What the shell saw of a draining topology.


@dataclass(frozen=True, slots=True)
class IntervalProgress:
    """What the owner of an interval says of it; pending productions are those not ACKed."""

    sequencer: int
    commit: int
    queued: int
    pending: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Broadcast low watermarks by incarnation, and intervals' reports by journal. What did not answer is absent."""

    topology: str
    watermarks: Mapping[str, int] = field(default_factory=dict)
    intervals: Mapping[str, IntervalProgress] = field(default_factory=dict)


# Instructions. Those with an ``operation`` are answered by an event that carries it.


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
    """Delete journals and the state of computations from the store, and have the authority forget them.

    It is also to forget the injectors of ``silence``, up to a sequencer each. Repeating it, however late, does no harm.
    """

    operation: int
    journals: tuple[str, ...]
    computations: tuple[str, ...]
    silence: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Reload:
    """List every key of the coordinator, and say so by ``loaded``."""


@dataclass(frozen=True, slots=True)
class Observe:
    """Ask workers and authority how far a draining topology is, and say so by ``observed``."""

    topology: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A request has succeeded, durably."""

    ticket: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Fail:
    """A request was refused, or could not be carried out."""

    ticket: int
    error: RequestError


@dataclass(frozen=True, slots=True)
class StepDown:
    """Another master leads: this core does nothing any more."""

    reason: str


Instruction = CreateJournals | Transact | Drop | Reload | Observe | Reply | Fail | StepDown
