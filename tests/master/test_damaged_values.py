"""A master neither uses nor overwrites a value of the coordinator that fails its checksum. Other values still work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millwheel.master.messages import (
    CancelTopology,
    CommitBatch,
    EnsureLog,
    FinishInjector,
    OpenInjector,
    SnapshotLoaded,
    SubmitTopology,
)
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import LIVE_STATES
from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import hours
from millwheel.rpc.failures import FailureCode, RequestError

from .harness import Cluster, Master, computation, source, topology

WHY = "checksum 00000001 where 00000002 was written"


def running() -> tuple[Cluster, Master]:
    """Two topologies, with a log, an injector and a batch source, at worker w1."""
    cluster = Cluster()
    cluster.join("w1")
    master = Master(cluster)
    for name in ("one", "two"):
        made = topology(name, [source(f"{name}.in")], [computation("c", {f"{name}.in": "k"}, [f"{name}.out"])])
        master.call(SubmitTopology(made, name))
    master.call(EnsureLog("one/one.out"))
    master.call(OpenInjector("one/one.in", "p"))
    master.call(CommitBatch("q", 3))
    master.tick(int(hours(1)))
    return cluster, master


def damage(cluster: Cluster, key: str) -> bytes:
    """Damage the value of ``key`` for all readers from now on. Returns the former value."""
    entry = cluster.state.entry(key)
    cluster.state.store(replace(entry, value=b"", damage=WHY))
    return entry.value


def restore(cluster: Cluster, key: str, value: bytes) -> None:
    cluster.state.store(replace(cluster.state.entry(key), value=value, damage=""))


def incarnation_of(cluster: Cluster, name: str) -> IncarnationId:
    return cluster.catalog().topologies[name].incarnations["c"]


def owners(cluster: Cluster, incarnation: IncarnationId) -> set[str]:
    return {one.owner.worker_id for one in cluster.catalog().maps[incarnation]}


def refused(master: Master, request: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        master.call(request)  # type: ignore[arg-type]
    assert caught.value.code is FailureCode.DATA_LOSS
    assert WHY in caught.value.message
    return caught.value


@pytest.mark.guarantee("G1", section="7.1")
@pytest.mark.parametrize("kind", ["topology", "log"])
def test_a_new_master_drops_nothing_of_an_unreadable_topology(kind: str) -> None:
    """Regression: what the topology names counted as garbage.

    Its state, journals, logs and injectors would have been deleted.
    """
    cluster, _ = running()
    journals = [one.journal for name in ("one", "two") for one in cluster.catalog().maps[incarnation_of(cluster, name)]]
    journals += [
        one.journal for log in cluster.catalog().logs.values() for one in cluster.catalog().maps[log.incarnation]
    ]
    key = keys.topology_key("one") if kind == "topology" else keys.log_key("one/one.out")
    value = damage(cluster, key)
    cluster.leave("w1")
    cluster.join("w2")
    before = {one.key: one for one in cluster.state.list("").entries}
    master = Master(cluster, "m2")
    before[keys.LEADERSHIP] = cluster.state.entry(keys.LEADERSHIP)
    for hour in range(2, 40):
        master.tick(int(hours(hour)))
    assert {one.key: one for one in cluster.state.list("").entries} == before
    assert all(map(cluster.has_journal, journals))
    assert key in str(refused(master, SubmitTopology(topology("three"), "r3")))
    assert key in str(refused(master, OpenInjector("two/two.in", "p")))
    restore(cluster, key, value)
    again = Master(cluster, "m3")
    again.tick(int(hours(41)))
    assert all(owners(cluster, one) == {"w2"} for one in cluster.catalog().maps)


@pytest.mark.guarantee("G11", section="7.1")
def test_a_map_with_a_damaged_chunk_is_frozen_and_others_go_on() -> None:
    cluster, _ = running()
    one, two = incarnation_of(cluster, "one"), incarnation_of(cluster, "two")
    journals = [interval.journal for interval in cluster.catalog().maps[one]]
    key = keys.chunk_key(one, 0)
    value = damage(cluster, key)
    damaged = cluster.state.entry(key)
    cluster.leave("w1")
    cluster.join("w2")
    master = Master(cluster, "m2")
    master.tick(int(hours(2)))
    assert owners(cluster, two) == {"w2"}
    assert cluster.state.entry(key) == damaged
    master.call(CancelTopology("one", "c1"))
    for hour in range(3, 40):
        master.tick(int(hours(hour)))
    assert cluster.catalog().topologies.get("one") is None or (
        cluster.catalog().topologies["one"].state not in LIVE_STATES
    ), "what its own record says can be changed"
    assert cluster.state.entry(key) == damaged
    assert all(map(cluster.has_journal, journals)), "what the chunk names is not known, and stays"
    restore(cluster, key, value)
    again = Master(cluster, "m3")
    again.tick(int(hours(41)))
    assert cluster.state.get(key) is None
    assert not any(map(cluster.has_journal, journals))


@pytest.mark.guarantee("G3", section="6.2")
def test_nothing_is_drawn_while_the_counter_cannot_be_read() -> None:
    """Regression: a damaged counter was read as zero. Sequencers would have been drawn twice."""
    cluster, _ = running()
    value = damage(cluster, keys.SEQUENCER)
    cluster.leave("w1")
    cluster.join("w2")
    master = Master(cluster, "m2")
    master.tick(int(hours(2)))
    assert owners(cluster, incarnation_of(cluster, "one")) == {"w1"}
    assert "sequencer" in str(refused(master, OpenInjector("two/two.in", "p")))
    master.call(CommitBatch("q", 4))
    restore(cluster, keys.SEQUENCER, value)
    again = Master(cluster, "m3")
    again.tick(int(hours(3)))
    assert owners(cluster, incarnation_of(cluster, "one")) == {"w2"}


@pytest.mark.guarantee("G1", section="5.2")
def test_a_damaged_injector_or_cursor_refuses_its_own_alone() -> None:
    """Regression: a damaged cursor was read as "no batch". The next batch would have been accepted a second time."""
    cluster, _ = running()
    injector, cursor = keys.injector_key("one/one.in", "p"), keys.batch_key("q")
    damage(cluster, injector)
    damage(cluster, cursor)
    before = cluster.state.entry(injector), cluster.state.entry(cursor)
    master = Master(cluster, "m2")
    master.tick(int(hours(2)))
    for request in (OpenInjector("one/one.in", "p"), FinishInjector("one/one.in", "p", 1)):
        assert injector in str(refused(master, request))
    assert cursor in str(refused(master, CommitBatch("q", 1)))
    assert (cluster.state.entry(injector), cluster.state.entry(cursor)) == before
    master.call(OpenInjector("two/two.in", "p"))
    master.call(CommitBatch("r", 1))
    assert sorted(master.core.catalog.damaged) == sorted([injector, cursor])


@pytest.mark.guarantee("G11", section="7.1")
def test_garbage_collection_spares_what_a_damaged_chunk_names() -> None:
    """This also holds for a master that has read the chunk while it was whole."""
    cluster, master = running()
    one, two = incarnation_of(cluster, "one"), incarnation_of(cluster, "two")
    mine, others = ([interval.journal for interval in cluster.catalog().maps[name]] for name in (one, two))
    damage(cluster, keys.chunk_key(one, 0))
    damaged = cluster.state.entry(keys.chunk_key(one, 0))
    master.handle(SnapshotLoaded(cluster.state.list("")))
    for name in ("one", "two"):
        master.call(CancelTopology(name, f"c{name}"))
    for hour in range(2, 5):
        master.tick(int(hours(hour)))
    assert cluster.state.entry(keys.chunk_key(one, 0)) == damaged
    assert all(map(cluster.has_journal, mine))
    assert not any(map(cluster.has_journal, others))
