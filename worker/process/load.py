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
from millwheel.rpc.clock import wall_now
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.worker.interval import HookTime, IntervalCore
from millwheel.worker.interval.measures import IntervalMeasures
from millwheel.worker.log import LogCore
from millwheel.worker.owner import OwnerPhase
from millwheel.worker.process.hook_status import failures_of, hook_time, hooks_of
from millwheel.worker.process.log_load import log_load
from millwheel.worker.process.rates import WindowRate
from millwheel.worker.process.tallies import HookPlace, Place
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


class LoadMeter:
    """Rates of the process and its intervals. They are measured when ``load`` is called."""

    def __init__(
        self,
        intervals: Callable[[], Iterable[Metered]],
        clock: Callable[[], float] = time.monotonic,
        damaged: Callable[[], Mapping[tuple[str, int], AtRest]] = dict,
        absent: Callable[[], Mapping[tuple[str, int], AtRest]] = dict,
        hooks: Callable[[], Mapping[HookPlace, HookTime]] = dict,
        key_functions: Callable[[], Iterable[wire.KeyFunctionFailure]] = tuple,
        describe_links: Callable[[wire.GetWorkerLoadResponse], None] = lambda response: None,
        wall: Callable[[], int] = wall_now,
        measures: Callable[[], Mapping[Place, IntervalMeasures]] = dict,
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
        self._traffic = TrafficMeter(clock())
        self._process = psutil.Process()
        self._limit = memory_limit()
        self._cpu = WindowRate(clock(), self._cpu_seconds())
        self._rates: dict[tuple[str, int], tuple[WindowRate, WindowRate, WindowRate]] = {}
        self._looked_at = clock()

    def load(self) -> wire.GetWorkerLoadResponse:
        """The present load."""
        now = self._clock()
        response = wire.GetWorkerLoadResponse(
            cpu=self._cpu.per_second(now, self._cpu_seconds()),
            resident_bytes=self._process.memory_info().rss,
            memory_limit_bytes=self._limit,
        )
        rates: dict[tuple[str, int], tuple[WindowRate, WindowRate, WindowRate]] = {}
        loads: list[tuple[wire.IntervalLoad, IntervalCore | LogCore]] = []
        for one in self._intervals():
            name, records = (one.journal, one.sequencer), one.core.state.journal.counted.records
            slow = _slow_seconds(one.core)
            # The records that an owner has counted itself begin at 0, as those of the traffic do. Its work was also
            # that of its opening, which says nothing of its load.
            known = self._rates.get(name) or (
                WindowRate(self._looked_at, 0.0),
                WindowRate(now, one.busy),
                WindowRate(now, slow),
            )
            rates[name] = known
            load = _interval_load(one)
            if isinstance(one.core, LogCore):
                load.log.CopyFrom(log_load(one.core))
            else:
                load.system_lag_seconds = system_lag_seconds(one.core, self._wall())
            load.records_per_second = known[0].per_second(now, records)
            load.busy = known[1].per_second(now, one.busy)
            load.slow = known[2].per_second(now, slow)
            loads.append((load, one.core))
        self._rates, self._looked_at = rates, now
        for load, core in heapq.nlargest(_MAX_SAMPLED_INTERVALS, loads, key=lambda pair: pair[0].busy):
            if isinstance(core, IntervalCore):
                for key, share in core.state.intake.sample.shares():
                    load.sample.add(key=key, share=share)
        response.intervals.extend(load for load, _ in loads)
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
        for (topology, computation, hook), total in sorted(self._hooks().items(), key=lambda item: item[0]):
            if total.calls or total.failures:
                response.hooks.add(topology=topology, computation=computation, time=hook_time(hook, total))
        response.key_functions.extend(self._key_functions())
        response.traffic.extend(self._traffic.traffic(now, self._measures()))
        self._describe_links(response)
        return response

    def _cpu_seconds(self) -> float:
        used = self._process.cpu_times()
        return used.user + used.system


def _slow_seconds(core: IntervalCore | LogCore) -> float:
    return 0.0 if isinstance(core, LogCore) else core.meter.records.slow_seconds + core.meter.timers.slow_seconds


def _interval_load(one: Metered) -> wire.IntervalLoad:
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
    load.keys = len(state.cells) - state.cells.pages
    load.cached_bytes = state.cells.bytes_held
    load.independent = core.independent
    damaged = core.damaged_rows
    load.damaged_rows = len(damaged)
    load.damage = next(iter(damaged.values()), "")
    load.stopped = core.stopped
    load.dead_letters = state.counts.dead_letters
    load.late = state.counts.late
    load.dropped = state.counts.dropped
    load.hooks.extend(hooks_of(core))
    if (failures := failures_of(core)) is not None:
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
