"""The metrics of sources and sinks for Prometheus. No label names a split: a source may have thousands."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from millwheel.model.keys import KeyInterval
from millwheel.worker.interval.measures import ConnectorMeasures
from millwheel.worker.process.measure_metrics import add_distribution
from millwheel.worker.process.metrics import LABELS
from millwheel.worker.process.tallies import ComputationName, Tallies

__all__ = ["ConnectorCollector", "splits_within"]

_SOURCE_LABELS: Final = [*LABELS, "stream"]

_READ: Final[dict[str, tuple[str, Callable[[ConnectorMeasures], int]]]] = {
    "millwheel_source_read_records": ("Records read from a source", lambda one: one.read_records),
    "millwheel_source_read_bytes": ("Bytes of these records, as they are stored", lambda one: one.read_bytes),
    "millwheel_source_lost_records": (
        "Records that a source has lost, because nothing keeps them",
        lambda one: one.lost_records,
    ),
    "millwheel_source_bad_records": (
        "Records that could not be read, and went to the stream of bad=",
        lambda one: one.bad_records,
    ),
}
_WRITTEN: Final[dict[str, tuple[str, Callable[[ConnectorMeasures], int]]]] = {
    "millwheel_sink_written_records": (
        "Records of the batches that a sink has written",
        lambda one: one.written_records,
    ),
    "millwheel_sink_written_bytes": ("Bytes of these records, as they are stored", lambda one: one.written_bytes),
}


class ConnectorCollector(Collector):
    """Reads the counts of each source and each sink at a scrape, in the scraper's thread."""

    def __init__(self, tallies: Tallies) -> None:
        self._tallies = tallies

    def collect(self) -> Iterator[Metric]:
        """All metrics at this moment. A computation that is neither a source nor a sink has none."""
        measures = {place: one.connector for place, one in self._tallies.measures().items()}
        sources = {place: one for place, one in measures.items() if one.stream}
        sinks = {place: one for place, one in measures.items() if any(one.write_seconds.counts)}
        for name, (help_text, read) in _READ.items():
            family = CounterMetricFamily(name, help_text, labels=_SOURCE_LABELS)
            for place, one in sources.items():
                family.add_metric([*place, one.stream], read(one))
            yield family
        yield from self._of_splits(sources)
        for name, (help_text, written) in _WRITTEN.items():
            family = CounterMetricFamily(name, help_text, labels=LABELS)
            for place, one in sinks.items():
                family.add_metric(list(place), written(one))
            yield family
        times = HistogramMetricFamily("millwheel_sink_write_seconds", "Time of the write of a batch", labels=LABELS)
        for place, one in sinks.items():
            add_distribution(times, place, one.write_seconds)
        yield times

    def _of_splits(self, sources: dict[ComputationName, ConnectorMeasures]) -> Iterator[Metric]:
        """Figures of the splits whose keys are here. Others were here before."""
        keys: defaultdict[ComputationName, list[KeyInterval]] = defaultdict(list)
        for place, core in self._tallies.look()[0]:
            if place in sources:
                keys[place].append(core.keys)
        splits = GaugeMetricFamily(
            "millwheel_source_splits", "Splits that are read here and have not ended", labels=_SOURCE_LABELS
        )
        behind = GaugeMetricFamily(
            "millwheel_source_behind_records",
            "Records that waited in all splits after their last reads, as far as the source knows",
            labels=_SOURCE_LABELS,
        )
        most = GaugeMetricFamily(
            "millwheel_source_most_behind_records",
            "Records that waited in the split in which most did",
            labels=_SOURCE_LABELS,
        )
        for place, one in sources.items():
            counts = dict(one.behind)  # a split comes or goes meanwhile: the loop of the worker runs beside the scrape
            here = [counts[split] for split in splits_within(keys[place], counts)]
            labels, known = [*place, one.stream], [count for count in here if count is not None]
            splits.add_metric(labels, len(here))
            if known:
                behind.add_metric(labels, sum(known))
                most.add_metric(labels, max(known))
        yield from (splits, behind, most)


def splits_within(intervals: Iterable[KeyInterval], splits: Collection[str]) -> Iterator[str]:
    """The splits whose keys are in one of the intervals, which may overlap. Each split takes one binary search."""
    ordered = sorted(intervals, key=lambda one: one.start)
    starts = [one.start for one in ordered]
    # How far the intervals reach that begin at a start or before it. None: to the end.
    ends = list(accumulate((one.end for one in ordered), _farther))
    for split in splits:
        key = split.encode()
        before = bisect_right(starts, key) - 1
        if before >= 0 and ((end := ends[before]) is None or key < end):
            yield split


def _farther(one: bytes | None, other: bytes | None) -> bytes | None:
    return None if one is None or other is None else max(one, other)
