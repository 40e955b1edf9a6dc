"""The workers' last load reports, with the cost of each interval and the key that halves its load. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millwheel.master.trends import TRACKED_SECONDS, Pace, Trend
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId, incarnation_of_journal
from millwheel.model.keys import KeyInterval
from millwheel.model.time import Duration, Timestamp
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as cluster
from millwheel.rpc.v1 import inspection_pb2 as wire

__all__ = [
    "ComputationLoad",
    "Division",
    "IntervalReport",
    "LoadBook",
    "WorkerReport",
    "divide",
    "merged_columns",
    "merged_hooks",
    "merged_traffic",
]

_SMOOTHING: Final = 0.5
"""The weight of the newest value in a smoothed cost. The rest is the previous cost."""
MAX_TRENDS: Final = 10_000
"""Of so many intervals that are behind, a trend is kept: about 10 MB. After an outage, all intervals may be behind."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker's load report. ``base``: the cost of the process besides its intervals, in cores, smoothed."""

    load: wire.GetWorkerLoadResponse
    at: Timestamp
    base: float


@dataclass(frozen=True, slots=True)
class IntervalReport:
    """An interval's load report.

    ``cost``: seconds of work per second, plus the cached share of its machine's memory; smoothed. ``trend``: of its
    backlog, if it has one.
    """

    load: wire.IntervalLoad
    at: Timestamp
    cost: float
    trend: Trend | None = None

    @property
    def pace(self) -> Pace | None:
        """What comes and goes in an interval that has a backlog. None: it has none, or not for long enough."""
        return None if self.trend is None else self.trend.pace(self._arriving, self.load.queued_records)

    @property
    def come(self) -> float | None:
        """How many records come in a second. None: it cannot be said."""
        if self._arriving is None and self.load.system_lag_seconds < TRACKED_SECONDS:
            return self.load.records_per_second
        pace = self.pace
        return self._arriving if pace is None else pace.come

    @property
    def _arriving(self) -> float | None:
        return self.load.arriving_per_second if self.load.HasField("arriving_per_second") else None


@dataclass(frozen=True, slots=True)
class Division:
    """A division of a load. ``at``: the upper half's first key. ``smaller``: the lighter side's share, 0 to 0.5."""

    at: bytes
    smaller: float


@dataclass(frozen=True, slots=True)
class ComputationLoad:
    """What the present owners of a computation's intervals report together.

    ``sums``: a row that has the sums alone. ``waiting``: the intervals with records that wait, and their loads.
    """

    sums: cluster.ComputationOverview
    waiting: Sequence[tuple[catalog.IntervalRecord, wire.IntervalLoad]]


class LoadBook:
    """The newest report of each worker, and of each interval by its journal.

    Pages ask each second for what follows from all intervals. It is kept until a report comes or the catalog changes.
    It has many methods: each answers one question of pages, balancing or health.
    """

    def __init__(self) -> None:
        self.workers: dict[str, WorkerReport] = {}
        self.intervals: dict[str, IntervalReport] = {}
        self._trends: dict[str, Trend] = {}
        self._asked_since: dict[str, Timestamp] = {}
        self._troubled: list[tuple[str, wire.IntervalLoad]] | None = None
        self._together: dict[IncarnationId, ComputationLoad] = {}
        self._together_at: tuple[Catalog, int] | None = None

    def on_request(self, worker: str, now: Timestamp) -> None:
        """Record that a worker is asked for its load: the first time counts."""
        self._asked_since.setdefault(worker, now)

    def on_load(self, worker: str, load: wire.GetWorkerLoadResponse, now: Timestamp) -> None:
        """Record a worker's report. Of two reports of an interval, the one with the larger sequencer counts."""
        self._changed()
        memory = max(load.memory_limit_bytes, 1)
        for one in load.intervals:
            before = self.intervals.get(one.journal)
            if before is not None and before.load.sequencer > one.sequencer:
                continue
            cost = one.busy + one.cached_bytes / memory
            smoothed = _smoothed(before.cost if before else None, cost)
            trend = self._trend(one, now, same=before is not None and before.load.sequencer == one.sequencer)
            self.intervals[one.journal] = IntervalReport(one, now, smoothed, trend)
        base = max(load.cpu - sum(one.busy for one in load.intervals), 0.0)
        known = self.workers.get(worker)
        self.workers[worker] = WorkerReport(load, now, _smoothed(known.base if known else None, base))

    def _trend(self, load: wire.IntervalLoad, now: Timestamp, *, same: bool) -> Trend | None:
        """Continue the trend of an interval's backlog. Another owner, not the ``same``, begins a new one."""
        trend = self._trends.pop(load.journal, None)
        if load.system_lag_seconds < TRACKED_SECONDS or len(self._trends) >= MAX_TRENDS:
            return None
        trend = trend if same and trend is not None else Trend()
        trend.add(now, load.system_lag_seconds, load.records_per_second, load.queued_records)
        self._trends[load.journal] = trend
        return trend

    def hooks(self, topology: str) -> dict[str, list[wire.HookTime]]:
        """Return, by computation of a topology, the hooks' times in all running processes, since the start of each."""
        hooks = [one for worker in self.workers.values() for one in worker.load.hooks if one.topology == topology]
        names = sorted({one.computation for one in hooks})
        return {name: merged_hooks(one.time for one in hooks if one.computation == name) for name in names}

    def columns(self, topology: str) -> list[wire.ComputationColumns]:
        """Return how the records of the computations of a topology run, by name, as the running workers say."""
        parts = [one for worker in self.workers.values() for one in worker.load.columns if one.topology == topology]
        names = sorted({one.computation for one in parts})
        return [merged_columns(one for one in parts if one.computation == name) for name in names]

    def appends(self) -> tuple[float, float]:
        """Return the commits that all workers' intervals append in a second, and their mean time in seconds."""
        parts = [one for worker in self.workers.values() for one in worker.load.traffic]
        rate = sum(one.appends_per_second for one in parts)
        busy = sum(one.appends_per_second * one.append_seconds for one in parts)
        return rate, busy / rate if rate else 0.0

    def key_functions(self) -> dict[IncarnationId, list[wire.KeyFunctionFailure]]:
        """Return, by incarnation, the key functions that raise, from the reports of running workers."""
        found: dict[IncarnationId, list[wire.KeyFunctionFailure]] = {}
        for worker in self.workers.values():
            for one in worker.load.key_functions:
                found.setdefault(one.consumer, []).append(one)
        return found

    def forget_gone(self, known: Catalog) -> None:
        """Forget workers that are gone, and intervals that no map contains or names as parents any more."""
        self._changed()
        self.workers = {name: report for name, report in self.workers.items() if name in known.workers}
        self._asked_since = {name: at for name, at in self._asked_since.items() if name in known.workers}
        self.intervals = {journal: report for journal, report in self.intervals.items() if known.journal_lives(journal)}
        self._trends = {journal: trend for journal, trend in self._trends.items() if journal in self.intervals}

    def _changed(self) -> None:
        self._troubled, self._together = None, {}

    @property
    def troubled(self) -> Sequence[tuple[str, wire.IntervalLoad]]:
        """The reports with failures or damage, of former owners too, by journal."""
        if self._troubled is None:
            loads = ((journal, report.load) for journal, report in self.intervals.items())
            self._troubled = sorted((one for one in loads if _is_troubled(one[1])), key=lambda one: one[0])
        return self._troubled

    def together(self, known: Catalog, incarnation: IncarnationId) -> ComputationLoad:
        """Return what the present owners of a computation's intervals report together."""
        if self._together_at is None or self._together_at[0] is not known or self._together_at[1] != known.revision:
            self._together, self._together_at = {}, (known, known.revision)
        found = self._together.get(incarnation)
        if found is None:
            pairs = [(one, self.load_of(one)) for one in known.maps.get(incarnation, ())]
            loads = [(one, load) for one, load in pairs if load is not None]
            waiting = [(one, load) for one, load in loads if load.queued_records and one.HasField("owner")]
            found = self._together[incarnation] = ComputationLoad(_sums([load for _, load in loads]), waiting)
        return found

    def load_of(self, interval: catalog.IntervalRecord) -> wire.IntervalLoad | None:
        """Return the report of the interval's present owner; None if there is none."""
        report = self.report_of(interval)
        return None if report is None else report.load

    def report_of(self, interval: catalog.IntervalRecord) -> IntervalReport | None:
        """Return the report of the interval's present owner, with its trend; None if there is none."""
        report = self.intervals.get(interval.journal)
        return report if report is not None and report.load.sequencer == interval.sequencer else None

    def cost(self, interval: catalog.IntervalRecord) -> float:
        """Return the cost of an interval. A child without a report is assumed to cost its part of the parents' cost."""
        report = self.intervals.get(interval.journal)
        if report is not None:
            return report.cost
        parents = [self.intervals.get(parent.journal) for parent in interval.parents]
        together = sum(parent.cost for parent in parents if parent is not None)
        return together / 2 if len(parents) == 1 else together

    def costs(self) -> Mapping[str, float]:
        """Return the costs of intervals, by journal."""
        return {journal: report.cost for journal, report in self.intervals.items()}

    def independent(self, known: Catalog) -> Mapping[str, int]:
        """Return the intervals whose present owners report that they no longer need their parents."""
        found = {}
        for journal, report in self.intervals.items():
            interval_map = known.maps.get(incarnation_of_journal(journal))
            interval = None if interval_map is None or not report.load.independent else interval_map.of_journal(journal)
            if interval_map is not None and known.is_damaged(interval_map.name):
                continue
            if interval is not None and interval.parents and interval.sequencer == report.load.sequencer:
                found[journal] = interval.sequencer
        return found

    def is_fresh(self, worker: str, now: Timestamp, within: Duration) -> bool:
        """Whether a worker has reported its load that recently."""
        report = self.workers.get(worker)
        return report is not None and now - report.at <= within

    def is_silent(self, worker: str, now: Timestamp, within: Duration) -> bool:
        """Whether a worker has reported nothing for that long, although it was asked.

        A worker that has just registered is not silent: its first report takes a moment.
        """
        return now - self._asked_since.get(worker, now) > within and not self.is_fresh(worker, now, within)


def _is_troubled(load: wire.IntervalLoad) -> bool:
    return bool(load.stopped or load.absence or load.quarantined or load.damaged_rows or load.HasField("failures"))


def _sums(loads: Sequence[wire.IntervalLoad]) -> cluster.ComputationOverview:
    return cluster.ComputationOverview(
        records_per_second=sum(one.records_per_second for one in loads),
        busy=sum(one.busy for one in loads),
        queued_records=sum(one.queued_records for one in loads),
        pending_productions=sum(one.pending_productions for one in loads),
        keys=sum(one.keys for one in loads),
        cached_bytes=sum(one.cached_bytes for one in loads),
        late=sum(one.late for one in loads),
        dropped=sum(one.dropped for one in loads),
        dead_letters=sum(one.dead_letters for one in loads),
        system_lag_seconds=max((one.system_lag_seconds for one in loads), default=0.0),
    )


def _smoothed(before: float | None, now: float) -> float:
    return now if before is None else before + _SMOOTHING * (now - before)


def divide(keys: KeyInterval, sample: Iterable[wire.KeyLoad]) -> Division | None:
    """Return the sampled key that divides the load of ``keys`` most evenly; None if no sampled key divides it.

    The load outside the sample is assumed to be distributed like the sampled keys.
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


def merged_hooks(parts: Iterable[wire.HookTime]) -> list[wire.HookTime]:
    """The times of each hook over several intervals, by the hooks' names."""
    whole: dict[str, wire.HookTime] = {}
    for part in parts:
        one = whole.setdefault(part.hook, wire.HookTime(hook=part.hook))
        one.calls += part.calls
        one.seconds += part.seconds
        one.failures += part.failures
        one.blocked += part.blocked
        one.by_columns += part.by_columns
        one.oversized += part.oversized
    return [whole[hook] for hook in sorted(whole)]


def merged_columns(parts: Iterable[wire.ComputationColumns]) -> wire.ComputationColumns:
    """How the records of a computation run in several processes. There is a process.

    If they differ, it is what keeps most of the work from columns: a worker may have other settings or another version.
    """
    return max(parts, key=lambda one: (bool(one.by_records), sum(bool(each.by_values) for each in one.inputs)))


def merged_traffic(parts: Iterable[wire.ComputationTraffic]) -> wire.ComputationTraffic:
    """The traffic of a computation in several processes. The latency is the mean over all committed records."""
    whole = wire.ComputationTraffic()
    streams: dict[str, wire.StreamTraffic] = {}
    seconds = 0.0
    for part in parts:
        whole.committed_per_second += part.committed_per_second
        seconds += part.commit_latency_seconds * part.committed_per_second
        for one in part.streams:
            stream = streams.setdefault(one.stream, wire.StreamTraffic(stream=one.stream))
            stream.records_per_second += one.records_per_second
            stream.bytes_per_second += one.bytes_per_second
    if whole.committed_per_second:
        whole.commit_latency_seconds = seconds / whole.committed_per_second
    whole.streams.extend(streams[name] for name in sorted(streams))
    return whole
