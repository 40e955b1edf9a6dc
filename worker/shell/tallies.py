"""What a worker process's intervals have committed while they were here: figures that only rise, as counters must.

An interval that moves takes its totals along, to whoever owns it next. If they were a process's counters a move would
look like a restart here, and like so many records at once there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from threading import Lock

from millwheel.worker.interval import Counts, IntervalCore

__all__ = ["Place", "Tallies"]

Place = tuple[str, str]
"""Topology and computation."""


class Tallies:
    """The interval cores of one process, and what those that have left had counted here. Any thread may look."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._cores: dict[str, tuple[Place, IntervalCore]] = {}
        self._past: defaultdict[Place, Counts] = defaultdict(Counts)

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

    def keep(self, places: Set[Place]) -> None:
        """Forget what computations had counted that are no more."""
        with self._lock:
            for place in self._past.keys() - places:
                del self._past[place]

    def look(self) -> tuple[list[tuple[Place, IntervalCore]], dict[Place, Counts]]:
        """The cores, and by computation what its intervals have counted here since the process began."""
        with self._lock:
            cores = list(self._cores.values())
            sums = defaultdict(Counts, {place: Counts(*counts.row) for place, counts in self._past.items()})
            for place, core in cores:
                sums[place].add(core.state.counted)
        return cores, dict(sums)
