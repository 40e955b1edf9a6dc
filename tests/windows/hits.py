"""Hits of pages, which the tests of windows count, and aggregators of all kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg
from millwheel.testing import TopologyHarness

HITS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.integers(0, 9)), max_size=60)
"""Page, timestamp and size."""


@dataclass
class Hit:
    page: str
    size: int = 1


def harness_of(computation: mw.Computation[Any, Any], **options: Any) -> TopologyHarness:
    """A topology with only ``computation``, named "windowed", which reads the source "hits"."""
    topology = mw.Topology("hits")
    topology.source("hits", Hit)
    topology.add(computation, name="windowed", inputs={"hits": mw.key("page")}, **options)
    return TopologyHarness(topology)


@dataclass
class Extent:
    """An accumulator with which an empty one may not be merged."""

    least: int
    most: int


def extent() -> agg.Aggregator[Any, Any]:
    """The smallest and the largest size."""

    def add(a: Extent | None, record: mw.Record[Hit]) -> Extent:
        size = record.value.size
        return Extent(size, size) if a is None else Extent(min(a.least, size), max(a.most, size))

    def merge(a: Extent | None, b: Extent | None) -> Extent:
        assert a is not None
        assert b is not None
        return Extent(min(a.least, b.least), max(a.most, b.most))

    return agg.Aggregator(Extent | None, lambda: None, add, merge, lambda a: [a.least, a.most], list[int])


AGGREGATORS: dict[str, Callable[[], agg.Aggregator[Any, Any]]] = {
    "count": agg.count,
    "total": lambda: agg.sum(lambda hit: hit.size),
    "mean": lambda: agg.mean(lambda hit: hit.size),
    "smallest": lambda: agg.min(lambda hit: hit.size),
    "collect": lambda: agg.collect(lambda hit: hit.size, int),
    "extent": extent,
}
