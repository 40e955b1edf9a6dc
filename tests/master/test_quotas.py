"""Quotas: what a topology may take of the cluster, where the master decides about it."""

from __future__ import annotations

import pytest

from millwheel.master.load_book import LoadBook
from millwheel.master.messages import (
    CancelTopology,
    IntervalName,
    MergeIntervals,
    SetTopologyQuota,
    SplitInterval,
    SubmitTopology,
    UpdateTopology,
)
from millwheel.master.settings import MasterSettings
from millwheel.master.views import view_of
from millwheel.model.time import Duration, Timestamp
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog

from .harness import Cluster, Master, topology


def started(**quota: float) -> tuple[Cluster, Master]:
    """Two computations with two intervals each."""
    cluster = Cluster()
    cluster.join("w1")
    master = Master(cluster, settings=MasterSettings(split_points=(b"m",)))
    master.call(SubmitTopology(topology(), "r1"))
    master.call(SetTopologyQuota("zeitgeist", catalog.TopologyQuota(**quota)))  # type: ignore[arg-type]
    return cluster, master


def split(master: Master, key: bytes, at: bytes) -> object:
    return master.call(SplitInterval(IntervalName("zeitgeist", "window-counter", key=key), at))


def test_a_quota_is_in_the_topologys_record() -> None:
    cluster, _ = started(weight=2.0, records_per_second=500)
    quota = cluster.catalog().topologies["zeitgeist"].quota
    assert (quota.weight, quota.records_per_second, quota.intervals) == (2.0, 500, 0)


def test_a_split_beyond_the_quota_is_refused_and_changes_nothing() -> None:
    cluster, master = started(intervals=5)
    split(master, b"a", b"c")
    before = cluster.catalog()
    with pytest.raises(RequestError, match="may have 5 intervals, and would have 6") as refused:
        split(master, b"x", b"z")
    assert refused.value.code is FailureCode.RESOURCE_EXHAUSTED
    assert cluster.catalog().revision == before.revision


def test_a_merge_makes_room_for_a_split() -> None:
    cluster, master = started(intervals=4)
    with pytest.raises(RequestError, match="quota zeitgeist --intervals"):
        split(master, b"a", b"c")
    detector = IntervalName("zeitgeist", "dip-detector", key=b"a")
    master.call(MergeIntervals(detector))
    split(master, b"a", b"c")
    assert len(cluster.catalog().maps[cluster.catalog().topologies["zeitgeist"].incarnations["window-counter"]]) == 3


def test_an_update_may_add_as_many_computations_as_fit() -> None:
    cluster, master = started(intervals=5)
    spec = topology()
    spec.computations.add().CopyFrom(spec.computations[1])
    spec.computations[2].name = "more"
    del spec.computations[2].outputs[:]
    with pytest.raises(RequestError, match="may have 5 intervals, and would have 6"):
        master.call(UpdateTopology(spec))
    master.call(SetTopologyQuota("zeitgeist", catalog.TopologyQuota(intervals=6)))
    master.call(UpdateTopology(spec))
    assert "more" in cluster.catalog().topologies["zeitgeist"].incarnations


def test_a_new_topology_of_the_name_keeps_the_quota() -> None:
    cluster, master = started(intervals=4, weight=0.5)
    master.call(CancelTopology("zeitgeist"))
    master.call(SubmitTopology(topology(), "r2"))
    assert cluster.catalog().topologies["zeitgeist"].quota.weight == 0.5
    master.call(CancelTopology("zeitgeist"))
    master.call(SetTopologyQuota("zeitgeist", catalog.TopologyQuota(intervals=3)))
    with pytest.raises(RequestError, match="may have 3 intervals, and would have 4"):
        master.call(SubmitTopology(topology(), "r3"))


def test_the_intervals_that_there_are_stay() -> None:
    cluster, master = started(intervals=1)
    assert len(cluster.catalog().maps) >= 2
    with pytest.raises(RequestError, match="may have 1 intervals, and would have 5"):
        split(master, b"a", b"c")


@pytest.mark.parametrize("weight", [-1.0, 0.001, 1_000.0, float("nan"), float("inf")])
def test_an_impossible_weight_is_refused(weight: float) -> None:
    with pytest.raises(RequestError, match=r"is not between 0\.01 and 100"):
        started(weight=weight)


def test_the_balancer_splits_nothing_of_a_complete_topology() -> None:
    cluster, _ = started(intervals=4)
    known = cluster.catalog()
    incarnations = set(known.topologies["zeitgeist"].incarnations.values())
    assert view_of(known, LoadBook(), Timestamp(0), Duration(1)).complete == incarnations
    cluster, _ = started(intervals=5)
    assert view_of(cluster.catalog(), LoadBook(), Timestamp(0), Duration(1)).complete == frozenset()
