"""A master's core states when it next looks for overdue work."""

from __future__ import annotations

from millwheel.coordination.contract import Compare
from millwheel.master.core import MasterCore
from millwheel.master.messages import SnapshotLoaded
from millwheel.model.time import milliseconds, seconds
from tests.master.harness import Cluster, Master


def test_a_core_without_a_catalog_and_a_deposed_one_need_no_tick() -> None:
    assert MasterCore(Compare("leader", 1)).next_deadline() is None
    cluster = Cluster()
    master = Master(cluster)
    assert master.core.next_deadline() is not None
    cluster.elect("another")
    master.handle(SnapshotLoaded(cluster.state.list("")))
    assert master.core.deposed
    assert master.core.next_deadline() is None


def test_the_next_tick_follows_even_if_the_clock_was_set_back() -> None:
    master = Master(Cluster())
    master.tick(seconds(100))
    assert master.core.next_deadline() == seconds(100) + milliseconds(200)
    master.tick(seconds(40))
    assert master.core.next_deadline() == seconds(40) + milliseconds(200)
