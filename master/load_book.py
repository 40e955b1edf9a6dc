"""What workers last told of their load, and what follows: an interval's cost, and the key that halves it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millwheel.core.catalog import Catalog
from millwheel.core.keys import KeyInterval
from millwheel.core.time import Duration, Timestamp
from millwheel.rpc.hook_failures import merged_hooks
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import inspection_pb2 as wire

__all__ = ["Division", "IntervalTold", "LoadBook", "WorkerTold", "divide"]

_SMOOTHING: Final = 0.5
"""How much of a cost is what was told last; the rest is what it was before."""


@dataclass(frozen=True, slots=True)
class WorkerTold:
    """``base``: what the process costs beside its intervals, in cores, smoothed."""

    load: wire.GetWorkerLoadResponse
    at: Timestamp
    base: float


@dataclass(frozen=True, slots=True)
class IntervalTold:
    """``cost``: seconds of work per second, and the share of its machine's memory that it caches; smoothed."""

    load: wire.IntervalLoad
    at: Timestamp
    cost: float


@dataclass(frozen=True, slots=True)
class Division:
    """``at``: the first key of the upper half; ``smaller``: the lighter side's share of the load, 0 to 0.5."""

    at: bytes
    smaller: float


class LoadBook:
    """The newest word of each worker, and of each interval by its journal."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerTold] = {}
        self.intervals: dict[str, IntervalTold] = {}

    def heard(self, worker: str, load: wire.GetWorkerLoadResponse, now: Timestamp) -> None:
        """Take what a worker told into account. Of two that speak of an interval the larger sequencer counts."""
        memory = max(load.memory_limit_bytes, 1)
        for one in load.intervals:
            before = self.intervals.get(one.journal)
            if before is not None and before.load.sequencer > one.sequencer:
                continue
            cost = one.busy + one.cached_bytes / memory
            self.intervals[one.journal] = IntervalTold(one, now, _smoothed(before.cost if before else None, cost))
        base = max(load.cpu - sum(one.busy for one in load.intervals), 0.0)
        known = self.workers.get(worker)
        self.workers[worker] = WorkerTold(load, now, _smoothed(known.base if known else None, base))

    def hooks(self, topology: str) -> dict[str, list[wire.HookTime]]:
        """By computation of a topology, what its hooks took in all processes that run now, since each began."""
        told = [one for worker in self.workers.values() for one in worker.load.hooks if one.topology == topology]
        names = sorted({one.computation for one in told})
        return {name: merged_hooks(one.time for one in told if one.computation == name) for name in names}

    def forget_gone(self, known: Catalog) -> None:
        """Forget workers that are gone, and intervals that nothing has or names any more."""
        self.workers = {name: told for name, told in self.workers.items() if name in known.workers}
        self.intervals = {journal: told for journal, told in self.intervals.items() if known.journal_lives(journal)}

    def of(self, interval: catalog.IntervalRecord) -> wire.IntervalLoad | None:
        """What the interval's present owner told of it; None if it has not."""
        told = self.intervals.get(interval.journal)
        return told.load if told is not None and told.load.sequencer == interval.sequencer else None

    def cost(self, interval: catalog.IntervalRecord) -> float:
        """What an interval costs; a child of which nothing was told is taken to have its part of its parents' cost."""
        told = self.intervals.get(interval.journal)
        if told is not None:
            return told.cost
        parents = [self.intervals.get(parent.journal) for parent in interval.parents]
        together = sum(parent.cost for parent in parents if parent is not None)
        return together / 2 if len(parents) == 1 else together

    def costs(self) -> Mapping[str, float]:
        """What intervals cost, by journal."""
        return {journal: told.cost for journal, told in self.intervals.items()}

    def independent(self, known: Catalog) -> Mapping[str, int]:
        """The intervals with parents of which their present owners say that they need them no more."""
        found = {}
        for journal, told in self.intervals.items():
            table = known.tables.get(journal.rpartition(".j")[0])
            interval = None if table is None or not told.load.independent else table.of_journal(journal)
            if table is not None and known.is_damaged(table.name):
                continue
            if interval is not None and interval.parents and interval.sequencer == told.load.sequencer:
                found[journal] = interval.sequencer
        return found

    def is_fresh(self, worker: str, now: Timestamp, within: Duration) -> bool:
        """Whether a worker has told its load that recently."""
        told = self.workers.get(worker)
        return told is not None and now - told.at <= within


def _smoothed(before: float | None, now: float) -> float:
    return now if before is None else before + _SMOOTHING * (now - before)


def divide(keys: KeyInterval, sample: Iterable[wire.KeyLoad]) -> Division | None:
    """The sampled key that divides the load of ``keys`` most evenly; None if none of them divides it at all.

    What the sample does not tell of is taken to lie as the sampled keys do.
    """
    inside: Sequence[wire.KeyLoad] = sorted((one for one in sample if one.key in keys), key=lambda one: one.key)
    total = sum(one.share for one in inside)
    rest = max(1.0 - total, 0.0)
    best: Division | None = None
    below = 0.0
    for index, one in enumerate(inside):
        if one.key != keys.start and index > 0:
            lower = (below + rest * index / len(inside)) / (total + rest)
            smaller = min(lower, 1.0 - lower)
            if best is None or smaller > best.smaller:
                best = Division(one.key, smaller)
        below += one.share
    return best
