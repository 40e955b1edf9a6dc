"""The totals that a worker process's intervals have committed in this process: monotone, as counters must be.

An interval that moves takes its own totals along to its next owner. If a process exported those as counters, a move
would look like a restart here, and like as many new records at the next owner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from threading import Lock

from millwheel.worker.interval import DrainingCore, HookTime, IntervalCore
from millwheel.worker.interval.measures import IntervalMeasures
from millwheel.worker.journal import CommitCounts
from millwheel.worker.process.refused_deliveries import RefusedDeliveries

__all__ = ["ComputationName", "HookName", "Tallies"]

ComputationName = tuple[str, str]
"""(topology, computation)."""

HookName = tuple[str, str, str]
"""(topology, computation, ``process_record``, ``process_batch`` or ``process_timer``)."""


class Tallies:
    """The interval cores of one process, and the counts of those that have left. Any thread may read them."""

    def __init__(self) -> None:
        self.refused = RefusedDeliveries()
        self._lock = Lock()
        self._cores: dict[str, tuple[ComputationName, IntervalCore]] = {}
        self._past: defaultdict[ComputationName, CommitCounts] = defaultdict(CommitCounts)
        self._past_hooks: defaultdict[HookName, HookTime] = defaultdict(HookTime)
        self._measures: dict[ComputationName, IntervalMeasures] = {}

    def measures_of(self, place: ComputationName) -> IntervalMeasures:
        """What the intervals of a computation measure. They all add to one object."""
        with self._lock:
            return self._measures.setdefault(place, IntervalMeasures())

    def measures(self) -> dict[ComputationName, IntervalMeasures]:
        """The measures of each computation in this process since it began."""
        with self._lock:
            return dict(self._measures)

    def enter(self, journal: str, place: ComputationName, core: IntervalCore) -> None:
        """The process runs an interval from now on."""
        with self._lock:
            self._cores[journal] = place, core

    def leave(self, journal: str) -> None:
        """The process does not run the interval any more. No effect if it did not."""
        with self._lock:
            place, core = self._cores.pop(journal, (None, None))
            if place is not None and core is not None:
                self._past[place].add(*core.state.journal.counted.row)
                _add_hooks(self._past_hooks, place, core)

    def keep(self, places: Set[ComputationName]) -> None:
        """Drop the counts of computations that were removed."""
        self.refused.keep(places)
        with self._lock:
            for place in self._past.keys() - places:
                del self._past[place]
            for name in [name for name in self._past_hooks if name[:2] not in places]:
                del self._past_hooks[name]
            for place in self._measures.keys() - places:
                del self._measures[place]

    def hooks(self) -> dict[HookName, HookTime]:
        """Calls, seconds and failures of each hook in this process since it began."""
        with self._lock:
            sums: defaultdict[HookName, HookTime] = defaultdict(HookTime)
            for name, time in self._past_hooks.items():
                sums[name].add(time)
            for place, core in self._cores.values():
                _add_hooks(sums, place, core)
        return dict(sums)

    def cores_by_place(self) -> dict[ComputationName, IntervalCore]:
        """An interval core of each computation that has some here. One that drains belongs to a removed computation."""
        with self._lock:
            return {place: core for place, core in self._cores.values() if not isinstance(core, DrainingCore)}

    def look(self) -> tuple[list[tuple[ComputationName, IntervalCore]], dict[ComputationName, CommitCounts]]:
        """The cores, and the counts of each computation in this process since it began."""
        with self._lock:
            cores = list(self._cores.values())
            sums = defaultdict(CommitCounts, {place: CommitCounts(*counts.row) for place, counts in self._past.items()})
            for place, core in cores:
                sums[place].add(*core.state.journal.counted.row)
        return cores, dict(sums)


def _add_hooks(sums: defaultdict[HookName, HookTime], place: ComputationName, core: IntervalCore) -> None:
    sums[*place, core.state.program.record_hook].add(core.meter.records)
    if core.state.program.handles_timers:
        sums[*place, "process_timer"].add(core.meter.timers)
