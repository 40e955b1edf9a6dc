"""Decides when a draining topology is done, from watermarks, or from two equal observations of idle intervals."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from millwheel.master.messages import Progress
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId, injector_group
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp, format_timestamp
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["DrainWatch"]


class DrainWatch:
    """The observations of the draining topologies so far. There are two ways for a topology to be done.

    First, the low watermarks of all its computations are plus infinity. Every injector has finished then, and a
    watermark never passes anything pending (4.5). With feedback edges this is not enough, because they take no part
    in watermarks. It never happens if an injector vanished without finishing.

    Second, two successive observations find every interval idle at the same commit, at least ``grace`` after the
    first observation. A record is always queued at its receiver or pending at its sender. So any movement between the
    two observations would have added a commit.
    """

    def __init__(self, grace: Duration) -> None:
        self._grace = grace
        self._since: dict[str, Timestamp] = {}
        """The time of a topology's first observation. The start of its drain may come from another master's clock."""
        self._quiet: dict[str, Mapping[str, int]] = {}
        self._waiting: dict[str, list[str]] = {}
        self._through: set[str] = set()

    def observe(self, known: Catalog, progress: Progress, now: Timestamp) -> None:
        """Record one observation of a topology."""
        record = known.topologies.get(progress.topology)
        if record is None or record.state != catalog.TOPOLOGY_STATE_DRAINING:
            self.forget(progress.topology)
            return
        if damaged := sorted(one for one in record.incarnations.values() if known.is_damaged(one)):
            self._waiting[progress.topology] = [f"the damaged interval map of {one}" for one in damaged]
            return
        commits = _quiet_commits(known, record, progress)
        again = commits is not None and commits == self._quiet.get(progress.topology)
        if commits is None:
            self._quiet.pop(progress.topology, None)
        else:
            self._quiet[progress.topology] = commits
        # The clock may be set back.
        since = self._since[progress.topology] = min(now, self._since.get(progress.topology, now))
        graced = now >= since + self._grace
        if (_finished(record, progress) and not _has_feedback(record)) or (again and graced):
            self._through.add(progress.topology)
        self._waiting[progress.topology] = list(_waiting(known, record, progress, graced))

    def is_through(self, topology: str) -> bool:
        """Whether everything pending has been processed."""
        return topology in self._through

    def waiting_for(self, topology: str) -> list[str]:
        """Describe the remaining work that the last observation found, as text for operators."""
        return self._waiting.get(topology, ["the first look at its intervals"])

    def keep(self, topologies: Collection[str]) -> None:
        """Forget all topologies except these, which are draining."""
        for topology in (self._since.keys() | self._waiting.keys() | self._through) - set(topologies):
            self.forget(topology)

    def forget(self, topology: str) -> None:
        """Forget a topology that does not drain, or no longer drains."""
        self._since.pop(topology, None)
        self._quiet.pop(topology, None)
        self._waiting.pop(topology, None)
        self._through.discard(topology)


def _incarnations(record: catalog.TopologyRecord) -> list[tuple[str, IncarnationId]]:
    return [(one.name, record.incarnations[one.name]) for one in record.spec.computations]


def _finished(record: catalog.TopologyRecord, progress: Progress) -> bool:
    values = [progress.watermarks.get(incarnation, MIN_TIMESTAMP) for _, incarnation in _incarnations(record)]
    return all(value >= MAX_TIMESTAMP for value in values)


def _has_feedback(record: catalog.TopologyRecord) -> bool:
    return any(edge.feedback for computation in record.spec.computations for edge in computation.inputs)


def _quiet_commits(known: Catalog, record: catalog.TopologyRecord, progress: Progress) -> Mapping[str, int] | None:
    """Return the commit of each interval if each answers under its newest sequencer and is idle; otherwise None."""
    commits = {}
    for _, incarnation in _incarnations(record):
        intervals = known.interval_map(incarnation)
        for interval in intervals.intervals if intervals else ():
            seen = progress.intervals.get(interval.journal)
            if seen is None or seen.sequencer != interval.sequencer or seen.queued or seen.pending:
                return None
            commits[interval.journal] = seen.commit
    return commits


def _waiting(known: Catalog, record: catalog.TopologyRecord, progress: Progress, graced: bool) -> Iterator[str]:
    if not graced:
        yield "its injectors, which have a few seconds to hand over what they hold"
    for name, incarnation in _incarnations(record):
        intervals = known.interval_map(incarnation)
        looks = [(one, progress.intervals.get(one.journal)) for one in (intervals.intervals if intervals else ())]
        silent = sum(1 for one, seen in looks if seen is None or seen.sequencer != one.sequencer)
        work = sum(seen.queued + seen.pending for _, seen in looks if seen is not None)
        if silent:
            yield f"computation {name}: {silent} interval(s) that do not answer"
        if work:
            value = Timestamp(progress.watermarks.get(incarnation, MIN_TIMESTAMP))
            yield f"computation {name}: {work} records pending, low watermark {format_timestamp(value)}"
    yield from _open_inputs(known, record)


def _open_inputs(known: Catalog, record: catalog.TopologyRecord) -> Iterator[str]:
    own = {incarnation for _, incarnation in _incarnations(record)}
    for stream in sorted({edge.stream for computation in record.spec.computations for edge in computation.inputs}):
        for group in known.groups_of(stream):
            upstream = known.computation(group)
            if group not in own and upstream and upstream[0].state == catalog.TOPOLOGY_STATE_RUNNING:
                yield f"stream {stream}, which topology {upstream[0].spec.name} still produces"
            if group == injector_group(stream) and not known.is_draining(stream):
                yield f"stream {stream}, which another topology still reads"
