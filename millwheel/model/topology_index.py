"""What follows from the topologies and the streams' logs of a catalog: who produces to a stream, and who consumes it.

These records change rarely, and every routed record and every look at the catalog asks about them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from millwheel.model.incarnation import IncarnationId
from millwheel.model.stream_names import dead_letter_stream
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = [
    "ACTIVE_STATES",
    "DEAD_LETTER_TYPE",
    "LIVE_STATES",
    "Consumer",
    "TopologyIndex",
    "code_of",
    "codes_of",
    "dead_letter_writers",
    "outputs_of",
]

ACTIVE_STATES: Final = frozenset({catalog.TOPOLOGY_STATE_RUNNING, catalog.TOPOLOGY_STATE_DRAINING})
"""The states of a topology in which its intervals have owners."""

LIVE_STATES: Final = ACTIVE_STATES | {catalog.TOPOLOGY_STATE_DRAINED, catalog.TOPOLOGY_STATE_PAUSED}
"""The states in which the cluster keeps a topology's state and reserves its name."""

DEAD_LETTER_TYPE: Final = "DeadLetter"
"""The record type of every dead-letter stream."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """One consumer of a stream: a computation or, with ``log``, the stream's log. A log takes the empty key."""

    incarnation: IncarnationId
    topology: str
    computation: str
    key: specs.KeySpec
    code: specs.CodeReference
    exactly_once: bool
    feedback: bool
    log: bool


class TopologyIndex:
    """The answers for one set of topologies and logs. Each is computed at the first question.

    Invariant: the records do not change afterwards. The catalog makes a new index when one is replaced.
    """

    def __init__(
        self, topologies: Mapping[str, catalog.TopologyRecord], logs: Mapping[str, catalog.StreamLogRecord]
    ) -> None:
        self.live = tuple(
            (name, topologies[name]) for name in sorted(topologies) if topologies[name].state in LIVE_STATES
        )
        """The live topologies with their names, sorted."""
        self._logs = dict(logs)

    @cached_property
    def computations(self) -> dict[str, tuple[catalog.TopologyRecord, specs.ComputationSpec]]:
        """By incarnation: the topology and the computation."""
        found: dict[str, tuple[catalog.TopologyRecord, specs.ComputationSpec]] = {}
        for _, record in self.live:
            for computation in record.spec.computations:
                found.setdefault(record.incarnations[computation.name], (record, computation))
        return found

    @cached_property
    def removed(self) -> dict[str, tuple[catalog.TopologyRecord, catalog.RemovedComputation]]:
        """By incarnation: the topology and the record of a removed computation that still has productions."""
        found: dict[str, tuple[catalog.TopologyRecord, catalog.RemovedComputation]] = {}
        for _, record in self.live:
            for removed in record.removed:
                found.setdefault(removed.incarnation, (record, removed))
        return found

    @cached_property
    def consumers(self) -> dict[str, list[Consumer]]:
        """By stream: the computations that consume it, of topologies that are not yet drained, and its log, last."""
        found: dict[str, list[Consumer]] = {}
        for name, record in self.live:
            if record.state == catalog.TOPOLOGY_STATE_DRAINED:
                continue
            for computation in record.spec.computations:
                for edge in computation.inputs:
                    found.setdefault(edge.stream, []).append(_consumer(name, record, computation, edge))
        nothing = (specs.KeySpec(), specs.CodeReference())
        for stream, log in self._logs.items():
            one = Consumer(log.incarnation, "", "", *nothing, exactly_once=True, feedback=False, log=True)
            found.setdefault(stream, []).append(one)
        return found

    @cached_property
    def edges(self) -> frozenset[tuple[str, str]]:
        """All pairs (consumer's incarnation, consumed stream), logs included."""
        return frozenset((one.incarnation, stream) for stream, found in self.consumers.items() for one in found)

    @cached_property
    def streams(self) -> dict[str, specs.StreamSpec]:
        """By name: each stream that a live topology declares, produces to or accepts injected records for."""
        found: dict[str, specs.StreamSpec] = {}
        for name, record in self.live:
            for declared in record.spec.streams:
                if not declared.external:
                    found[declared.name] = declared
            for computation in [*record.spec.computations, *(one.spec for one in record.removed)]:
                for output in outputs_of(computation):
                    found.setdefault(output, specs.StreamSpec(name=output))
            letters = dead_letter_stream(name)
            found.setdefault(
                letters,
                specs.StreamSpec(name=letters, record_type=DEAD_LETTER_TYPE, format=specs.VALUE_FORMAT_MSGPACK),
            )
        return found

    @cached_property
    def producers(self) -> dict[str, list[IncarnationId]]:
        """By stream: the incarnations that produce to it, dead letters included."""
        found: dict[str, list[IncarnationId]] = {}
        for name, record in self.live:
            letters, writers = dead_letter_stream(name), dead_letter_writers(record.spec)
            made = [
                (record.incarnations.get(one.name, IncarnationId("")), one, one.name in writers)
                for one in record.spec.computations
            ]
            for one in record.removed:
                discards = one.spec.failure_policy.action == specs.FAILURE_ACTION_DEAD_LETTER
                made.append((one.incarnation, one.spec, discards))
            for incarnation, computation, discards in made:
                outputs = outputs_of(computation)
                for output in dict.fromkeys([*outputs, letters]) if discards else outputs:
                    found.setdefault(output, []).append(incarnation)
        return found


def dead_letter_writers(spec: specs.TopologySpec) -> frozenset[str]:
    """The computations that produce to a topology's dead-letter stream: those whose failure policy writes dead letters.

    If no computation writes dead letters, the result is all computations. The stream exists in that case too, and its
    low watermark follows all of them, so it ends when they end.
    """
    policy = specs.FAILURE_ACTION_DEAD_LETTER
    writers = frozenset(one.name for one in spec.computations if one.failure_policy.action == policy)
    return writers or frozenset(one.name for one in spec.computations)


def code_of(topology: specs.TopologySpec, computation: specs.ComputationSpec) -> specs.CodeReference:
    """The code that a computation runs: the code submitted for it alone or, without that, its topology's code."""
    return computation.code if computation.HasField("code") else topology.code


def codes_of(topology: specs.TopologySpec) -> list[specs.CodeReference]:
    """All code that a worker loads for a topology: its computations' code, and the code with its sources' types."""
    own = [topology.code] if topology.code.digest and any(one.injected for one in topology.streams) else []
    return own + [code_of(topology, computation) for computation in topology.computations]


def outputs_of(computation: specs.ComputationSpec) -> tuple[str, ...]:
    """Every stream that a computation declares to produce to: its outputs, and the stream for diverted late records."""
    late = computation.late_stream if computation.late_policy == specs.LATE_POLICY_DIVERT else ""
    return tuple(dict.fromkeys([*computation.outputs, *([late] if late else [])]))


def _consumer(
    name: str, record: catalog.TopologyRecord, computation: specs.ComputationSpec, edge: specs.InputSpec
) -> Consumer:
    return Consumer(
        incarnation=record.incarnations[computation.name],
        topology=name,
        computation=computation.name,
        key=edge.key,
        code=code_of(record.spec, computation),
        exactly_once=computation.exactly_once,
        feedback=edge.feedback,
        log=False,
    )
