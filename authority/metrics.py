"""The authority's Prometheus metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millwheel.authority.group_names import GroupLabels, labels_of
from millwheel.authority.silences import SilentInjector
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["AuthorityMetrics", "LabelsOf", "ShardMetrics", "unnamed"]

LabelsOf: TypeAlias = Callable[[str], GroupLabels | None]
"""Returns the labels of a group. None: they are not known, and the group is not shown."""


def unnamed(group: str) -> GroupLabels | None:
    """Return the labels of streams alone, for a shard that knows no names of computations."""
    return labels_of(group, "")


class AuthorityMetrics:
    """The metrics of one shard in ``registry``. No other shard uses the same registry."""

    def __init__(
        self,
        registry: CollectorRegistry,
        watermarks: Callable[[], Mapping[str, int]],
        labels: LabelsOf = unnamed,
        silences: Callable[[], Iterable[SilentInjector]] = tuple,
    ) -> None:
        """
        Args:
            registry: A registry of this shard alone.
            watermarks: Returns the broadcast values by group, in microseconds. Any thread may call it.
            labels: Returns a group's labels. Any thread may call it.
            silences: Returns the silent injector processes. Another thread calls it; a RuntimeError means that the
                shard changed meanwhile.
        """
        registry.register(_Watermarks(watermarks, labels))
        registry.register(_Silences(silences))
        self.reports = Counter(
            "millwheel_authority_reports_total", "Watermark reports of intervals and injectors", registry=registry
        )
        self.refused = Counter(
            "millwheel_authority_refused_total",
            "Reports and acceptances that did not count: superseded or never accepted",
            ["reason"],
            registry=registry,
        )
        self.append = Histogram(
            "millwheel_authority_append_seconds",
            "From sending an append of the authority's journal until it is known to be in",
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0),
            registry=registry,
        )


class _Watermarks(Collector):
    """The metric of broadcast values. They are read when the metrics are requested."""

    def __init__(self, watermarks: Callable[[], Mapping[str, int]], labels: LabelsOf) -> None:
        self._watermarks = watermarks
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "millwheel_authority_watermark_seconds",
            "Broadcast low watermark, seconds since the epoch (-Inf: nothing known, +Inf: ended)",
            labels=GroupLabels._fields,
        )
        found: dict[GroupLabels, tuple[int, int]] = {}
        for group, watermark in self._watermarks().items():
            # A computation that was removed and came again has two groups for a moment. The later one has its name.
            if (labels := self._labels(group)) is not None:
                found[labels] = max(found.get(labels, (0, 0)), (_life(group), watermark))
        for labels, (_, watermark) in found.items():
            family.add_metric(labels, _seconds(watermark))
        yield family


class _Silences(Collector):
    """The metric of silent injector processes. They are read when the metrics are requested."""

    def __init__(self, silences: Callable[[], Iterable[SilentInjector]]) -> None:
        self._silences = silences

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "millwheel_authority_silent_injector_seconds",
            "Seconds since the last report of an injector process that holds its stream's low watermark by its silence",
            labels=["stream", "process"],
        )
        # The event loop's thread may change the shard meanwhile. The next scrape has it again.
        with suppress(RuntimeError):
            for one in list(self._silences()):
                family.add_metric([one.stream, one.process], one.silence / 1e6)
        yield family


class ShardMetrics(Collector):
    """The metrics of all shards that a process serves, each labelled with its number. Shards come and go."""

    def __init__(self) -> None:
        self._registries: dict[int, CollectorRegistry] = {}

    def add(self, shard: int) -> CollectorRegistry:
        """Return a registry for a shard that is served from now on."""
        made = self._registries[shard] = CollectorRegistry()
        return made

    def drop(self, shard: int) -> None:
        """Remove the metrics of a shard."""
        self._registries.pop(shard, None)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all shards, with the label ``shard``."""
        together: dict[str, Metric] = {}
        for shard, registry in list(self._registries.items()):
            for metric in registry.collect():
                family = together.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    family.samples.append(sample._replace(labels={**sample.labels, "shard": str(shard)}))
        yield from together.values()


def _life(group: str) -> int:
    number = group.rpartition(".")[2]
    return int(number) if number.isdecimal() else 0


def _seconds(watermark: int) -> float:
    if watermark <= MIN_TIMESTAMP:
        return -math.inf
    return math.inf if watermark >= MAX_TIMESTAMP else watermark / 1e6
