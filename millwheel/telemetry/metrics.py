"""The metrics of a process by OTLP: what its page for Prometheus shows, sent to a collector (docs/tracing.md)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

__all__ = ["metrics_of"]

_CUMULATIVE = AggregationTemporality.CUMULATIVE
_Labels = tuple[tuple[str, str], ...]


def metrics_of(registry: CollectorRegistry, resource: Resource, began_ns: int) -> MetricsData:
    """All metrics of a registry at this moment.

    Args:
        registry: The registry. Its collectors may be called from any thread.
        resource: The process.
        began_ns: Since when counters count, in nanoseconds since the epoch.
    """
    now = time.time_ns()
    metrics = [one for family in registry.collect() for one in _converted(family, began_ns, now)]
    scope = ScopeMetrics(InstrumentationScope("millwheel"), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _converted(family: Family, began: int, now: int) -> Iterator[Metric]:
    """The metrics of one family. A summary becomes its count and its sum, because no process here has quantiles."""
    name, text = family.name, family.documentation
    samples = [one for one in family.samples if not one.name.endswith("_created")]
    if not samples:
        return
    if family.type == "histogram":
        yield Metric(name, text, family.unit, Histogram(list(_histograms(samples, began, now)), _CUMULATIVE))
    elif family.type == "counter":
        yield Metric(name, text, family.unit, _sum(samples, began, now))
    elif family.type == "summary":
        for suffix in ("_count", "_sum"):
            parts = [one for one in samples if one.name == name + suffix]
            yield Metric(name + suffix, text, "", _sum(parts, began, now))
    else:
        yield Metric(name, text, family.unit, Gauge(list(_points(samples, 0, now))))


def _sum(samples: Iterable[Sample], began: int, now: int) -> Sum:
    return Sum(list(_points(samples, began, now)), _CUMULATIVE, is_monotonic=True)


def _points(samples: Iterable[Sample], began: int, now: int) -> Iterator[NumberDataPoint]:
    for sample in samples:
        yield NumberDataPoint(sample.labels, began, now, float(sample.value))


def _histograms(samples: Iterable[Sample], began: int, now: int) -> Iterator[HistogramDataPoint]:
    """One point for each set of labels. Prometheus counts up to each bound, OTLP between two bounds."""
    up_to: defaultdict[_Labels, dict[float, float]] = defaultdict(dict)
    sums: dict[_Labels, float] = {}
    for sample in samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            up_to[labels][float(sample.labels["le"])] = sample.value
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    for labels, counts in up_to.items():
        bounds = sorted(counts)
        totals = [int(counts[bound]) for bound in bounds]
        between = [after - before for before, after in zip([0, *totals], totals, strict=False)]
        nan = float("nan")
        yield HistogramDataPoint(
            dict(labels), began, now, totals[-1], sums.get(labels, 0.0), between, bounds[:-1], nan, nan
        )
