"""The load of the process and of each interval over the last seconds, for balancing (section 7.1)."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import psutil

from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.clock import wall_now
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.worker.interval import HookTime, IntervalCore
from millwheel.worker.interval.measures import IntervalMeasures
from millwheel.worker.log import LogCore
from millwheel.worker.owner import OwnerPhase
from millwheel.worker.process.hook_status import failures_of, hook_time, hooks_of
from millwheel.worker.process.log_load import log_load
from millwheel.worker.process.rates import ArrivalRate, WindowRate
from millwheel.worker.process.source_readings import SourceReadings
from millwheel.worker.process.tallies import ComputationName, HookName
from millwheel.worker.process.traffic import TrafficMeter
from millwheel.worker.process.waiting_work import system_lag_seconds

__all__ = ["LoadMeter", "Metered", "memory_limit"]

_MAX_SAMPLED_INTERVALS: Final = 32
"""Number of intervals with reported keys: the busiest ones. Splitting others would not help."""

_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class Metered:
    """An interval that runs here. ``busy``: seconds of work since it was opened."""

    incarnation: IncarnationId
    journal: str
    sequencer: int
    core: IntervalCore | LogCore
    busy: float


class AtRest(Protocol):
    """An interval that does not run here, and why."""

    @property
    def incarnation(self) -> IncarnationId: ...
    @property
    def why(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _Known:
    """The last report of an interval, and its rates: of its records, its work, and its slow work.

    ``busy``: seconds of work since it was opened, at that report. ``since``: when that was seen first. ``rests``:
    whether the report holds until it works again.
    """

    load: wire.IntervalLoad
    rates: tuple[WindowRate, WindowRate, WindowRate]
    busy: float
    since: float
    rests: bool
    arrivals: ArrivalRate


class LoadMeter:
    """Rates of the process and its intervals. They are measured when ``load`` is called.

    It has many attributes: each part of the process that a report describes is asked by a function of its own.
    """

    def __init__(
        self,
        intervals: Callable[[], Iterable[Metered]],
        clock: Callable[[], float] = time.monotonic,
        damaged: Callable[[], Mapping[tuple[str, int], AtRest]] = dict,
        absent: Callable[[], Mapping[tuple[str, int], AtRest]] = dict,
        hooks: Callable[[], Mapping[HookName, HookTime]] = dict,
        key_functions: Callable[[], Iterable[wire.KeyFunctionFailure]] = tuple,
        describe_links: Callable[[wire.GetWorkerLoadResponse], None] = lambda response: None,
        wall: Callable[[], int] = wall_now,
        measures: Callable[[], Mapping[ComputationName, IntervalMeasures]] = dict,
        columns: Callable[[], Iterable[wire.ComputationColumns]] = tuple,
    ) -> None:
        """
        Args:
            intervals: The intervals that run here.
            clock: A steady clock, in seconds.
            damaged: The quarantined intervals, by journal and sequencer.
            absent: Those that cannot run here for another reason.
            hooks: The times of hooks since the process began.
            key_functions: The key functions that raise here.
            describe_links: Adds what the process does not reach to a report.
            wall: The wall clock, in microseconds.
            measures: What the intervals of each computation measure here.
            columns: How the records of each computation run here.
        """
        self._intervals = intervals
        self._damaged = damaged
        self._absent = absent
        self._hooks = hooks
        self._key_functions = key_functions
        self._describe_links = describe_links
        self._clock = clock
        self._wall = wall
        self._measures = measures
        self._columns = columns
        self._traffic = TrafficMeter(clock())
        self._sources = SourceReadings(wall())
        self._process = psutil.Process()
        self._limit = memory_limit()
        self._cpu = WindowRate(clock(), self._cpu_seconds())
        self._known: dict[tuple[str, int], _Known] = {}
        self._looked_at = clock()

    def load(self) -> wire.GetWorkerLoadResponse:
        """The present load."""
        now = self._clock()
        response = wire.GetWorkerLoadResponse(
            cpu=self._cpu.per_second(now, self._cpu_seconds()),
            resident_bytes=self._process.memory_info().rss,
            memory_limit_bytes=self._limit,
        )
        self._add_running(response, now)
        self._add_at_rest(response)
        for (topology, computation, hook), total in sorted(self._hooks().items(), key=lambda item: item[0]):
            if total.calls or total.failures:
                response.hooks.add(topology=topology, computation=computation, time=hook_time(hook, total))
        response.columns.extend(self._columns())
        response.key_functions.extend(self._key_functions())
        measures = self._measures()
        response.traffic.extend(self._traffic.traffic(now, measures))
        response.sources.extend(self._sources.with_bad_records(self._wall(), measures))
        self._describe_links(response)
        return response

    def _add_running(self, response: wire.GetWorkerLoadResponse, now: float) -> None:
        """Add the intervals that run here. The busiest ones have a sample of their keys."""
        known: dict[tuple[str, int], _Known] = {}
        loads: list[tuple[wire.IntervalLoad, IntervalCore | LogCore]] = []
        for one in self._intervals():
            name = (one.journal, one.sequencer)
            last = self._known.get(name)
            if last is None or not last.rests or last.busy != one.busy:
                last = self._measure(one, last, now)
            else:
                last.load.ClearField("sample")
            known[name] = last
            loads.append((last.load, one.core))
        self._known, self._looked_at = known, now
        for load, core in heapq.nlargest(_MAX_SAMPLED_INTERVALS, loads, key=lambda pair: pair[0].busy):
            if isinstance(core, IntervalCore):
                for key, share in core.state.intake.sample.shares():
                    load.sample.add(key=key, share=share)
        response.intervals.extend(load for load, _ in loads)

    def _add_at_rest(self, response: wire.GetWorkerLoadResponse) -> None:
        """Add the intervals that are assigned to this worker and do not run."""
        for (journal, sequencer), at_rest in self._damaged().items():
            response.intervals.add(
                incarnation=at_rest.incarnation,
                journal=journal,
                sequencer=sequencer,
                quarantined=True,
                damage=at_rest.why,
            )
        for (journal, sequencer), at_rest in self._absent().items():
            response.intervals.add(
                incarnation=at_rest.incarnation, journal=journal, sequencer=sequencer, absence=at_rest.why
            )

    def _measure(self, one: Metered, last: _Known | None, now: float) -> _Known:
        """Make the report of an interval that has worked since its last one, or in which something passes by time."""
        records, slow = one.core.state.journal.counted.records, _slow_seconds(one.core)
        # The records that an owner has counted itself begin at 0, as those of the traffic do. Its work was also
        # that of its opening, which says nothing of its load.
        rates = (
            (WindowRate(self._looked_at, 0.0), WindowRate(now, one.busy), WindowRate(now, slow))
            if last is None
            else last.rates
        )
        if last is not None and last.rests:
            for rate in rates:
                rate.rested(last.since, now)
        wall = self._wall()
        load = _interval_load(one, wall)
        arrivals = last.arrivals if last is not None else ArrivalRate()
        if isinstance(one.core, LogCore):
            load.log.CopyFrom(log_load(one.core))
        else:
            come = arrivals.per_second(now, _came_until(one.core, wall), one.core.state.intake.received)
            if come is not None:
                load.arriving_per_second = come
            load.system_lag_seconds = system_lag_seconds(one.core, wall)
        load.records_per_second = rates[0].per_second(now, records)
        load.busy = rates[1].per_second(now, one.busy)
        load.slow = rates[2].per_second(now, slow)
        since = last.since if last is not None and last.busy == one.busy else now
        if rests := self._rests(load, one.core):
            arrivals.forget()
        return _Known(load, rates, one.busy, since, rests, arrivals)

    def _rests(self, load: wire.IntervalLoad, core: IntervalCore | LogCore) -> bool:
        """Whether a report stays true while the interval handles no event: none of its figures changes by time alone.

        Logs have such figures, as the age of their records.
        """
        moves = load.records_per_second or load.busy or load.slow or load.arriving_per_second
        # Work that waits has no lag while the wall clock is behind its receipt. A hook may begin after that clock, too.
        waits = load.queued_records or load.pending_productions or load.system_lag_seconds
        if moves or waits or load.HasField("failures") or isinstance(core, LogCore):
            return False
        return not core.awaited_hooks(MAX_TIMESTAMP, 1)

    def _cpu_seconds(self) -> float:
        used = self._process.cpu_times()
        return used.user + used.system


def _slow_seconds(core: IntervalCore | LogCore) -> float:
    return 0.0 if isinstance(core, LogCore) else core.meter.records.slow_seconds + core.meter.timers.slow_seconds


def _came_until(core: IntervalCore, wall: int) -> int:
    """Until when the received records are all that came to the senders: until now, if none of them waits."""
    intake, clocks = core.state.intake, core.state.clocks
    return intake.came_until if intake.unfinished else max(intake.came_until, clocks.elapsed + wall - clocks.now)


def _interval_load(one: Metered, now: int) -> wire.IntervalLoad:
    load = wire.IntervalLoad(incarnation=one.incarnation, journal=one.journal, sequencer=one.sequencer)
    core = one.core
    load.serving = core.phase is OwnerPhase.SERVING
    if isinstance(core, LogCore):
        load.cached_bytes = core.state.records.memory
        load.independent = True
        return load
    state = core.state
    load.queued_records = state.intake.records
    load.pending_productions = state.outbox.unacked.records
    load.keys = state.cached_keys
    load.cached_bytes = state.cells.bytes_held + state.panes.bytes
    load.independent = core.independent
    damaged = core.damaged_rows
    load.damaged_rows = len(damaged)
    load.damage = next(iter(damaged.values()), "")
    load.stopped = core.stopped
    load.dead_letters = state.counts.dead_letters
    load.late = state.counts.late
    load.dropped = state.counts.dropped
    load.hooks.extend(hooks_of(core))
    if (failures := failures_of(core, now)) is not None:
        load.failures.CopyFrom(failures)
    return load


def memory_limit(cgroup: Path = _CGROUP) -> int:
    """The memory of the machine, or of this process's control group, in bytes."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(cgroup.read_text()))
    except (OSError, ValueError):
        # There is no control group, or its limit is "max".
        return total
