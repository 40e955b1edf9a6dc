"""What a worker process's intervals have committed while they were here: figures that only rise, as counters must.

An interval that moves takes its totals along, to whoever owns it next. If they were a process's counters a move would
look like a restart here, and like so many records at once there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from threading import Lock

from millwheel.worker.interval import Counts, HookTime, IntervalCore

__all__ = ["HookPlace", "Place", "Tallies"]

Place = tuple[str, str]
"""Topology and computation."""

HookPlace = tuple[str, str, str]
"""Topology, computation, and process_record or process_timer."""


class Tallies:
    """The interval cores of one process, and what those that have left had counted here. Any thread may look."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._cores: dict[str, tuple[Place, IntervalCore]] = {}
        self._past: defaultdict[Place, Counts] = defaultdict(Counts)
        self._past_hooks: defaultdict[HookPlace, HookTime] = defaultdict(HookTime)

    def enter(self, journal: str, place: Place, core: IntervalCore) -> None:
        """An interval is run here from now on."""
        with self._lock:
            self._cores[journal] = place, core

    def leave(self, journal: str) -> None:
        """It is not any more; nothing if it was not."""
        with self._lock:
            place, core = self._cores.pop(journal, (None, None))
            if place is not None and core is not None:
                self._past[place].add(core.state.counted)
                _add_hooks(self._past_hooks, place, core)

    def keep(self, places: Set[Place]) -> None:
        """Forget what computations had counted that are no more."""
        with self._lock:
            for place in self._past.keys() - places:
                del self._past[place]
            for name in [name for name in self._past_hooks if name[:2] not in places]:
                del self._past_hooks[name]

    def hooks(self) -> dict[HookPlace, HookTime]:
        """By hook, how often it ran here since the process began, for how long, and how often it failed."""
        with self._lock:
            sums: defaultdict[HookPlace, HookTime] = defaultdict(HookTime)
            for name, time in self._past_hooks.items():
                sums[name].add(time)
            for place, core in self._cores.values():
                _add_hooks(sums, place, core)
        return dict(sums)

    def look(self) -> tuple[list[tuple[Place, IntervalCore]], dict[Place, Counts]]:
        """The cores, and by computation what its intervals have counted here since the process began."""
        with self._lock:
            cores = list(self._cores.values())
            sums = defaultdict(Counts, {place: Counts(*counts.row) for place, counts in self._past.items()})
            for place, core in cores:
                sums[place].add(core.state.counted)
        return cores, dict(sums)


def _add_hooks(sums: defaultdict[HookPlace, HookTime], place: Place, core: IntervalCore) -> None:
    sums[*place, "process_record"].add(core.meter.records)
    if core.state.program.handles_timers:
        sums[*place, "process_timer"].add(core.meter.timers)
