"""The worker's figures for Prometheus, read from the cores when they are scraped (conventions: prefix, base units)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from millwheel.core.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.worker.interval import IntervalCore
from millwheel.worker.shell.runloop import wall_now

__all__ = ["WorkerCollector"]

_LABELS = ["topology", "computation"]


class WorkerCollector(Collector):
    """Sums each figure over the intervals of a computation; ``cores`` yields (topology, computation, core)."""

    def __init__(
        self,
        cores: Callable[[], Iterable[tuple[str, str, IntervalCore]]],
        quarantined: Callable[[], Iterable[tuple[str, str]]] = tuple,
    ) -> None:
        """``quarantined``: (topology, computation) of each interval that stands still by damage to what is stored."""
        self._cores = cores
        self._quarantined = quarantined

    def collect(self) -> Iterator[Metric]:
        """All figures of this moment."""
        sums: dict[str, dict[tuple[str, str], float]] = {}
        lags: dict[tuple[str, str], float] = {}
        now = wall_now()
        for topology, computation, core in self._cores():
            place = (topology, computation)
            for name, value in _figures(core):
                values = sums.setdefault(name, {})
                values[place] = values.get(place, 0.0) + value
            watermark = core.state.watermark
            if MIN_TIMESTAMP < watermark < MAX_TIMESTAMP:
                lags[place] = max(lags.get(place, 0.0), (now - watermark) / 1e6)
        for place in self._quarantined():
            values = sums.setdefault("millwheel_quarantined_intervals", {})
            values[place] = values.get(place, 0.0) + 1
        for name, help_text in _COUNTERS.items():
            counter = CounterMetricFamily(name, help_text, labels=_LABELS)
            for labels, value in sums.get(name, {}).items():
                counter.add_metric(list(labels), value)
            yield counter
        for name, help_text in _GAUGES.items():
            gauge = GaugeMetricFamily(name, help_text, labels=_LABELS)
            for labels, value in sums.get(name, {}).items():
                gauge.add_metric(list(labels), value)
            yield gauge
        lag = GaugeMetricFamily(
            "millwheel_data_lag_seconds",
            "Wall time minus input low watermark, the most of any interval",
            labels=_LABELS,
        )
        for labels, value in lags.items():
            lag.add_metric(list(labels), value)
        yield lag


_COUNTERS = {
    "millwheel_records": "Records committed",
    "millwheel_duplicates": "Duplicate deliveries recognised",
    "millwheel_late_records": "Records behind the low watermark",
    "millwheel_dead_letters": "Records and timers given up by their failure policy",
}

_GAUGES = {
    "millwheel_queued_records": "Records received and not committed",
    "millwheel_pending_productions": "Productions not yet ACKed by their consumers",
    "millwheel_timers": "Timers set",
    "millwheel_cache_bytes": "Memory that cached states are counted with",
    "millwheel_parked_keys": "Keys that wait for a row, a hook or another attempt",
    "millwheel_stopped_intervals": "Intervals that stand still by their failure policy",
    "millwheel_damaged_rows": "Keys whose stored state was found damaged",
    "millwheel_quarantined_intervals": "Intervals that stand still because something of their journal is damaged",
}


def _figures(core: IntervalCore) -> Iterator[tuple[str, float]]:
    state = core.state
    yield "millwheel_records", state.counts.records
    yield "millwheel_duplicates", state.counts.duplicates
    yield "millwheel_late_records", state.counts.late
    yield "millwheel_dead_letters", state.counts.dead_letters
    yield "millwheel_queued_records", state.intake.records
    yield "millwheel_pending_productions", state.outbox.records
    yield "millwheel_timers", state.timer_count
    yield "millwheel_cache_bytes", state.cells.bytes_held
    yield "millwheel_parked_keys", len(state.intake.parked)
    yield "millwheel_stopped_intervals", bool(core.stopped)
    yield "millwheel_damaged_rows", len(core.damaged_rows)
