"""The metrics of a registry as those of OpenTelemetry."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics.export import Gauge as OtelGauge
from opentelemetry.sdk.metrics.export import Histogram as OtelHistogram
from opentelemetry.sdk.metrics.export import Sum
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

from millwheel.telemetry.metrics import metrics_of


def _exported(registry: CollectorRegistry) -> dict[str, Any]:
    metrics = metrics_of(registry, Resource.create({}), 1)
    scopes = [scope for resource in metrics.resource_metrics for scope in resource.scope_metrics]
    return {metric.name: metric.data for scope in scopes for metric in scope.metrics}


def test_each_kind_of_metric_keeps_its_values_and_labels() -> None:
    registry = CollectorRegistry()
    Counter("calls_total", "Calls", ["method"], registry=registry).labels("a").inc(3)
    Gauge("open", "Open calls", registry=registry).set(-2.5)
    Summary("sizes", "Sizes", registry=registry).observe(7)
    exported = _exported(registry)
    calls = exported["calls"]
    assert isinstance(calls, Sum)
    assert calls.is_monotonic
    assert [(dict(point.attributes or {}), point.value) for point in calls.data_points] == [({"method": "a"}, 3.0)]
    assert isinstance(exported["open"], OtelGauge)
    assert exported["open"].data_points[0].value == -2.5
    assert exported["sizes_sum"].data_points[0].value == 7
    assert exported["sizes_count"].data_points[0].value == 1


def test_a_histogram_counts_between_its_bounds() -> None:
    registry = CollectorRegistry()
    times = Histogram("seconds", "Times", ["what"], buckets=(0.1, 1.0), registry=registry)
    for seconds in (0.05, 0.5, 0.6, 9.0):
        times.labels("x").observe(seconds)
    times.labels("y").observe(0.01)
    data = _exported(registry)["seconds"]
    assert isinstance(data, OtelHistogram)
    points = {dict(point.attributes or {})["what"]: point for point in data.data_points}
    assert list(points["x"].explicit_bounds) == [0.1, 1.0]
    assert list(points["x"].bucket_counts) == [1, 2, 1]
    assert (points["x"].count, points["x"].sum) == (4, 10.15)
    assert list(points["y"].bucket_counts) == [1, 0, 0]
