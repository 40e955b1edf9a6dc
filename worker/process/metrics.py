"""The worker's metrics for Prometheus, read from the cores at each scrape (conventions: prefix, base units).

Counters belong to the process and start with it. The gauge ``millwheel_owned_records`` is what the intervals here have
committed since the computation began, under any owner. Its sum over all workers counts each record once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.clock import wall_now
from millwheel.worker.interval import HookTime, IntervalCore
from millwheel.worker.process.key_failures import KeyPlace
from millwheel.worker.process.tallies import ComputationName, Tallies

__all__ = ["LABELS", "WorkerCollector", "gauge_of"]

LABELS: Final = ["topology", "computation"]


class WorkerCollector(Collector):
    """Sums each metric over the intervals of a computation."""

    def __init__(
        self,
        tallies: Tallies,
        quarantined: Callable[[], Iterable[ComputationName]] = tuple,
        running: Callable[[], Mapping[tuple[ComputationName, str], float]] = dict,
        key_failures: Callable[[], Mapping[KeyPlace, int]] = dict,
    ) -> None:
        """
        Args:
            tallies: The interval cores and their counts.
            quarantined: The topology and computation of each interval that damaged data has stopped.
            running: The hook that blocks the event loop now, with its seconds so far.
            key_failures: How often each key function has raised.
        """
        self._tallies = tallies
        self._quarantined = quarantined
        self._running = running
        self._key_failures = key_failures

    def collect(self) -> Iterator[Metric]:
        """All metrics at this moment."""
        sums: dict[str, dict[ComputationName, float]] = {}
        lags: dict[ComputationName, float] = {}
        now = wall_now()
        cores, counted = self._tallies.look()
        for place, counts in counted.items():
            for name, count in zip(_COUNTERS, counts.row, strict=True):
                sums.setdefault(name, {})[place] = count
        for place, core in cores:
            for name, (_, value_of) in _GAUGES.items():
                values = sums.setdefault(name, {})
                values[place] = values.get(place, 0.0) + value_of(core)
            watermark = core.state.watermark
            if MIN_TIMESTAMP < watermark < MAX_TIMESTAMP:
                lags[place] = max(lags.get(place, 0.0), (now - watermark) / 1e6)
        for name, help_text in _COUNTERS.items():
            counter = CounterMetricFamily(name, help_text, labels=LABELS)
            for labels, value in sums.get(name, {}).items():
                counter.add_metric(list(labels), value)
            yield counter
        for name, (help_text, _) in _GAUGES.items():
            yield gauge_of(name, help_text, sums.get(name, {}))
        yield gauge_of(
            "millwheel_quarantined_intervals",
            "Intervals that stand still because something of their journal is damaged",
            Counter(self._quarantined()),
        )
        yield gauge_of(
            "millwheel_data_lag_seconds", "Wall time minus input low watermark, the most of any interval", lags
        )
        yield from self._hooks()
        yield self._keys()

    def _keys(self) -> Metric:
        counter = CounterMetricFamily(
            "millwheel_key_failures",
            "Calls of key functions that raised, for records that injectors ask about",
            labels=[*LABELS, "stream"],
        )
        for place, count in self._key_failures().items():
            counter.add_metric(list(place), count)
        return counter

    def _hooks(self) -> Iterator[Metric]:
        """The hooks' metrics. A separate thread serves the page, also while a hook blocks the event loop."""
        times = self._tallies.hooks()
        for name, (help_text, value_of) in _HOOK_COUNTERS.items():
            counter = CounterMetricFamily(name, help_text, labels=_HOOK_LABELS)
            for hook, time in times.items():
                counter.add_metric(list(hook), value_of(time))
            yield counter
        running = GaugeMetricFamily(
            "millwheel_hook_blocking_seconds",
            "How long a hook has kept the event loop so far, if longer than worker.slow_hook_seconds",
            labels=_HOOK_LABELS,
        )
        for (place, hook_name), value in self._running().items():
            running.add_metric([*place, hook_name], value)
        yield running


def gauge_of(name: str, help_text: str, values: Mapping[ComputationName, float]) -> GaugeMetricFamily:
    """A gauge with a value for each computation."""
    gauge = GaugeMetricFamily(name, help_text, labels=LABELS)
    for labels, value in values.items():
        gauge.add_metric(list(labels), value)
    return gauge


_HOOK_LABELS: Final = ["topology", "computation", "hook"]

_HOOK_COUNTERS: dict[str, tuple[str, Callable[[HookTime], float]]] = {
    "millwheel_hook_calls": ("Calls of hooks", lambda time: time.calls),
    "millwheel_hook_seconds": ("Seconds in hooks, measured for each batch of calls", lambda time: time.seconds),
    "millwheel_hook_failures": ("Attempts at a record or timer that raised", lambda time: time.failures),
    "millwheel_hook_slow_batches": (
        "Batches of calls that kept the event loop longer than worker.slow_hook_seconds",
        lambda time: time.blocked,
    ),
    "millwheel_hook_column_records": (
        "Records among these calls that were added to windows by columns",
        lambda time: time.by_columns,
    ),
    "millwheel_hook_oversized_calls": (
        "Calls of process_batch that were undone: their effects are too large for one commit",
        lambda time: time.oversized,
    ),
}

# In the order of ``CommitCounts.row``.
_COUNTERS = {
    "millwheel_records": "Records committed",
    "millwheel_duplicates": "Duplicate deliveries recognised",
    "millwheel_late_records": "Records behind the low watermark",
    "millwheel_dead_letters": "Records and timers given up by their failure policy",
    "millwheel_dropped_records": "Late records without an effect: of late=Late.DROP, and too late for every window",
}

_GAUGES: dict[str, tuple[str, Callable[[IntervalCore], float]]] = {
    "millwheel_intervals": ("Intervals that are here", lambda core: 1),
    "millwheel_owned_records": (
        "Records committed by the intervals that are here, by earlier owners, too",
        lambda core: core.state.counts.records,
    ),
    "millwheel_queued_records": ("Records received and not committed", lambda core: core.state.intake.records),
    "millwheel_pending_productions": (
        "Productions not yet ACKed by their consumers",
        lambda core: core.state.outbox.unacked.records,
    ),
    "millwheel_timers": ("Timers set", lambda core: core.state.timers.count + len(core.state.panes)),
    "millwheel_cache_bytes": (
        "Memory that cached states are counted with",
        lambda core: core.state.cells.bytes_held + core.state.panes.bytes,
    ),
    "millwheel_cached_keys": (
        "Keys whose state is in memory",
        lambda core: core.state.cached_keys,
    ),
    "millwheel_blocked_keys": (
        "Keys that wait for a row, a hook or another attempt",
        lambda core: len(core.state.blocked.keys),
    ),
    "millwheel_failing_keys": ("Keys that are blocked because their hook raises", lambda core: core.failing.blocked),
    "millwheel_stopped_intervals": (
        "Intervals that stand still by their failure policy",
        lambda core: bool(core.stopped),
    ),
    "millwheel_damaged_rows": ("Keys whose stored state was found damaged", lambda core: len(core.damaged_rows)),
}
"""What is summed over the intervals of a computation, by name."""
