"""Injected streams that no process has ever fed, while others wait for them: for the health and a metric. Pure.

The low watermark of such a stream is unknown. So each union and each join with it stands, and its results never come.
A stream that nothing else waits with is no problem: a topology may wait for its first record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from millwheel.client.holds.sources import unfed_remedy
from millwheel.coordination.contract import DamagedValueError
from millwheel.master.health_problems import health_problem
from millwheel.model.catalog import ACTIVE_STATES, Catalog, outputs_of
from millwheel.model.time import Duration, Timestamp, format_duration, seconds
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["UNFED_AFTER", "UnfedStream", "unfed_problems", "unfed_streams"]

UNFED_AFTER: Final = seconds(300)
"""A deployment that starts the injectors after the topology takes less."""


@dataclass(frozen=True, slots=True)
class UnfedStream:
    """A stream that holds back records of others, because no process, or not each expected one, has ever come."""

    name: str
    missing: tuple[str, ...]
    """The expected processes that have not come. Empty: the stream takes any, and none has come."""
    waiting: tuple[tuple[str, str], ...]
    """The computations that wait, each by its topology and its name."""
    since: Timestamp
    """When the first one began to wait, in microseconds since the epoch."""


def unfed_streams(known: Catalog, now: Timestamp) -> list[UnfedStream]:
    """Return the streams that hold back what comes from others, since a process of them never came.

    A scrape may ask in another thread than that of the catalog's changes. So only copies are iterated, and no index of
    the catalog is asked for.

    Args:
        known: The catalog. Of a damaged one nothing is said here.
        now: The wall time, in microseconds.
    """
    try:
        known.check_shape()
    except DamagedValueError:
        return []
    active = [(name, one) for name, one in sorted(known.topologies.items()) if one.state in ACTIVE_STATES]
    # A stream of a topology that drains takes no more processes, and ends soon.
    running = [(name, one) for name, one in active if one.state == catalog.TOPOLOGY_STATE_RUNNING]
    awaited = _awaited([one for _, one in running], tuple(known.injectors.items()))
    unfed = awaited.keys()
    if not unfed:
        return []
    origins = _Origins([one.spec for _, one in active])
    declared = {stream.name: _begun(one) for _, one in running for stream in one.spec.streams if stream.injected}
    waiting: dict[str, list[tuple[str, str]]] = {}
    since: dict[str, Timestamp] = {}
    for name, record in running:
        for spec in record.spec.computations:
            found = origins.of(spec)
            for stream in found & unfed if found - unfed else ():
                # Its own topology may have begun, or been updated, later than the one that waits.
                begun = max(_begun(record), declared[stream])
                if now - begun > UNFED_AFTER:
                    waiting.setdefault(stream, []).append((name, spec.name))
                    since.setdefault(stream, begun)
    return [
        UnfedStream(stream, tuple(sorted(awaited[stream])), tuple(places), since[stream])
        for stream, places in sorted(waiting.items())
    ]


def unfed_problems(known: Catalog, now: Timestamp) -> Iterator[wire.HealthProblem]:
    """Yield a problem for each of :func:`unfed_streams`, which has the arguments."""
    for one in unfed_streams(known, now):
        topology, computation = one.waiting[0]
        others = f" (and {len(one.waiting) - 1:,} more)" if len(one.waiting) > 1 else ""
        ago = format_duration(Duration(now - one.since))
        missing = ", ".join(one.missing)
        who = f"injector process {missing} is expected, and has not" if missing else "no injector process has"
        text = (
            f"source {one.name}: {who} announced itself for {ago}. So windows "
            f"and timers of {topology}/{computation}{others} wait, also for records of other streams. "
            f"To mend it, {unfed_remedy(one.name)}"
        )
        yield health_problem(text, "MillwheelStreamUnfed", topology, computation)


def _awaited(
    running: Iterable[catalog.TopologyRecord], opened: Iterable[tuple[tuple[str, str], catalog.InjectorRecord]]
) -> dict[str, set[str]]:
    """Return the injected streams whose processes have not announced themselves in their present life.

    With each the names of the expected ones that are missing: none, if the stream takes any. ``opened``: the records of
    injector processes, by stream and process.
    """
    since: dict[str, int] = {}
    expected: dict[str, set[str]] = {}
    for record in running:
        for stream in record.spec.streams:
            if stream.injected:
                since[stream.name] = max(since.get(stream.name, 0), record.injected_since.get(stream.name, 0))
                expected[stream.name] = set(stream.expected_injectors)
    announced: dict[str, set[str]] = {}
    for (name, process), one in opened:
        if one.sequencer >= since.get(name, 0):
            announced.setdefault(name, set()).add(process)
    return {
        name: names - announced.get(name, set())
        for name, names in expected.items()
        if (names - announced.get(name, set()) if names else name not in announced)
    }


def _begun(record: catalog.TopologyRecord) -> Timestamp:
    """Return when the topology was submitted, updated or resumed last. It may wait for the stream since then."""
    return Timestamp(max(record.submitted_at_us, record.version_at_us, record.state_changed_at_us))


class _Origins:
    """Where the records of computations come from: injected streams, and those of computations without an input."""

    def __init__(self, topologies: Iterable[specs.TopologySpec]) -> None:
        self._writers: dict[str, list[specs.ComputationSpec]] = {}
        for topology in topologies:
            for computation in topology.computations:
                for stream in outputs_of(computation):
                    self._writers.setdefault(stream, []).append(computation)

    def of(self, computation: specs.ComputationSpec) -> set[str]:
        """Return the names of the streams at which the ways to a computation begin. Feedback is no way."""
        found, seen, waiting = set[str](), set[str](), deque(_inputs(computation))
        while waiting:
            stream = waiting.popleft()
            if stream in seen:
                continue
            seen.add(stream)
            inputs = [edge for writer in self._writers.get(stream, ()) for edge in _inputs(writer)]
            waiting.extend(inputs)
            if not inputs:
                found.add(stream)
        return found


def _inputs(computation: specs.ComputationSpec) -> list[str]:
    return [edge.stream for edge in computation.inputs if not edge.feedback]
