"""Metrics of watermarks have the names that people gave, and never the ids of groups."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry

from millwheel.authority.group_names import GroupLabels, GroupTopologies
from millwheel.authority.metrics import AuthorityMetrics
from millwheel.coordination.contract import CoordinatorUnavailableError, PrefixSnapshot, Put
from millwheel.model.catalog_keys import chunk_key
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1.catalog_pb2 import IntervalMapRecord
from tests.coordination.memory import MemoryCoordinator

WATERMARK = "millwheel_authority_watermark_seconds"


class Counting(MemoryCoordinator):
    """Counts the reads of interval maps. ``cut``: they fail."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.cut = False

    async def list(self, prefix: str) -> PrefixSnapshot:
        self.reads += 1
        if self.cut:
            raise CoordinatorUnavailableError("the line is cut")
        return await super().list(prefix)


async def coordinator_with(topologies: Mapping[str, str]) -> Counting:
    made = Counting()
    for group, topology in topologies.items():
        record = IntervalMapRecord(computation=group.rpartition(".")[0], topology=topology)
        await made.transact((), [Put(chunk_key(IncarnationId(group), 0), record.SerializeToString())])
    return made


def shown(names: GroupTopologies, watermarks: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    AuthorityMetrics(registry, lambda: watermarks, names.labels)
    samples = next(metric for metric in registry.collect() if metric.name == WATERMARK).samples
    assert len({tuple(one.labels.items()) for one in samples}) == len(samples), "Prometheus refuses a page with copies"
    return {tuple(one.labels[name] for name in GroupLabels._fields): one.value for one in samples}


async def test_computations_of_one_name_differ_by_their_topology() -> None:
    names = GroupTopologies(await coordinator_with({"count.3": "web", "count.4": "shop"}))
    watermarks = {"count.3": 5_000_000, "count.4": 6_000_000, "injector/shop/orders": 7_000_000}
    source = ("source", "shop", "", "shop/orders")
    assert shown(names, watermarks) == {source: 7.0}, "what has no name yet is not shown"
    await names.learn(watermarks)
    assert shown(names, watermarks | {"shop/totals.log.9": 8_000_000}) == {
        ("computation", "web", "count", ""): 5.0,
        ("computation", "shop", "count", ""): 6.0,
        source: 7.0,
        ("log", "shop", "", "shop/totals"): 8.0,
    }


async def test_of_two_lives_the_later_one_has_the_name() -> None:
    names = GroupTopologies(await coordinator_with({"count.9": "shop", "count.10": "shop"}))
    watermarks = {"count.9": 9_000_000, "count.10": 4_000_000}
    await names.learn(watermarks)
    assert shown(names, watermarks) == {("computation", "shop", "count", ""): 4.0}


async def test_each_name_is_read_once_and_forgotten_with_its_group() -> None:
    coordinator = await coordinator_with({"count.3": "shop"})
    names = GroupTopologies(coordinator)
    for _ in range(3):
        await names.learn(["count.3", "removed.7", "injector/shop/orders"])
    assert coordinator.reads == 2
    assert names.labels("removed.7") is None
    await names.learn([])
    assert names.labels("count.3") is None


async def test_a_failing_coordinator_takes_no_name_away() -> None:
    coordinator = await coordinator_with({"count.3": "shop", "sum.4": "shop"})
    names = GroupTopologies(coordinator)
    await names.learn(["count.3"])
    coordinator.cut = True
    with pytest.raises(CoordinatorUnavailableError):
        await names.learn(["count.3", "sum.4"])
    assert names.labels("count.3") == GroupLabels("computation", "shop", "count", "")
    coordinator.cut = False
    await names.learn(["count.3", "sum.4"])
    assert names.labels("sum.4") == GroupLabels("computation", "shop", "sum", "")
