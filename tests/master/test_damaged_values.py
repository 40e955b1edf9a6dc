"""A master does nothing with a value of the coordinator that fails its checksum, nor writes over it; others go on."""

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

from .harness import Master, World, computation, source, topology

WHY = "checksum 00000001 where 00000002 was written"


def running() -> tuple[World, Master]:
    """Two topologies, with a log, an injector and a batch source, at worker w1."""
    world = World()
    world.join("w1")
    master = Master(world)
    for name in ("one", "two"):
        made = topology(name, [source(f"{name}.in")], [computation("c", {f"{name}.in": "k"}, [f"{name}.out"])])
        master.call(SubmitTopology(made, name))
    master.call(EnsureLog("one/one.out"))
    master.call(OpenInjector("one/one.in", "p"))
    master.call(CommitBatch("q", 3))
    master.tick(int(hours(1)))
    return world, master


def damage(world: World, key: str) -> bytes:
    """Damage the value of ``key`` for all readers from now on. Returns the former value."""
    entry = world.state.entry(key)
    world.state.store(replace(entry, value=b"", damage=WHY))
    return entry.value


def restore(world: World, key: str, value: bytes) -> None:
    world.state.store(replace(world.state.entry(key), value=value, damage=""))


def incarnation_of(world: World, name: str) -> IncarnationId:
    return world.catalog().topologies[name].incarnations["c"]


def owners(world: World, incarnation: IncarnationId) -> set[str]:
    return {one.owner.worker_id for one in world.catalog().tables[incarnation]}


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
    world, _ = running()
    journals = [one.journal for name in ("one", "two") for one in world.catalog().tables[incarnation_of(world, name)]]
    journals += [
        one.journal for log in world.catalog().logs.values() for one in world.catalog().tables[log.incarnation]
    ]
    key = keys.topology_key("one") if kind == "topology" else keys.log_key("one/one.out")
    value = damage(world, key)
    world.leave("w1")
    world.join("w2")
    before = {one.key: one for one in world.state.list("").entries}
    master = Master(world, "m2")
    before[keys.LEADERSHIP] = world.state.entry(keys.LEADERSHIP)
    for hour in range(2, 40):
        master.tick(int(hours(hour)))
    assert {one.key: one for one in world.state.list("").entries} == before
    assert all(map(world.has_journal, journals))
    assert key in str(refused(master, SubmitTopology(topology("three"), "r3")))
    assert key in str(refused(master, OpenInjector("two/two.in", "p")))
    restore(world, key, value)
    again = Master(world, "m3")
    again.tick(int(hours(41)))
    assert all(owners(world, table) == {"w2"} for table in world.catalog().tables)


@pytest.mark.guarantee("G11", section="7.1")
def test_a_map_with_a_damaged_chunk_is_frozen_and_others_go_on() -> None:
    world, _ = running()
    one, two = incarnation_of(world, "one"), incarnation_of(world, "two")
    journals = [interval.journal for interval in world.catalog().tables[one]]
    key = keys.chunk_key(one, 0)
    value = damage(world, key)
    damaged = world.state.entry(key)
    world.leave("w1")
    world.join("w2")
    master = Master(world, "m2")
    master.tick(int(hours(2)))
    assert owners(world, two) == {"w2"}
    assert world.state.entry(key) == damaged
    master.call(CancelTopology("one", "c1"))
    for hour in range(3, 40):
        master.tick(int(hours(hour)))
    assert world.catalog().topologies.get("one") is None or (
        world.catalog().topologies["one"].state not in LIVE_STATES
    ), "what its own record says can be changed"
    assert world.state.entry(key) == damaged
    assert all(map(world.has_journal, journals)), "what the chunk names is not known, and stays"
    restore(world, key, value)
    again = Master(world, "m3")
    again.tick(int(hours(41)))
    assert world.state.get(key) is None
    assert not any(map(world.has_journal, journals))


@pytest.mark.guarantee("G3", section="6.2")
def test_nothing_is_drawn_while_the_counter_cannot_be_read() -> None:
    """Regression: a damaged counter was read as zero. Sequencers would have been drawn twice."""
    world, _ = running()
    value = damage(world, keys.SEQUENCER)
    world.leave("w1")
    world.join("w2")
    master = Master(world, "m2")
    master.tick(int(hours(2)))
    assert owners(world, incarnation_of(world, "one")) == {"w1"}
    assert "sequencer" in str(refused(master, OpenInjector("two/two.in", "p")))
    master.call(CommitBatch("q", 4))
    restore(world, keys.SEQUENCER, value)
    again = Master(world, "m3")
    again.tick(int(hours(3)))
    assert owners(world, incarnation_of(world, "one")) == {"w2"}


@pytest.mark.guarantee("G1", section="5.2")
def test_a_damaged_injector_or_cursor_refuses_its_own_alone() -> None:
    """Regression: a damaged cursor was read as "no batch". The next batch would have been accepted a second time."""
    world, _ = running()
    injector, cursor = keys.injector_key("one/one.in", "p"), keys.batch_key("q")
    damage(world, injector)
    damage(world, cursor)
    before = world.state.entry(injector), world.state.entry(cursor)
    master = Master(world, "m2")
    master.tick(int(hours(2)))
    for request in (OpenInjector("one/one.in", "p"), FinishInjector("one/one.in", "p", 1)):
        assert injector in str(refused(master, request))
    assert cursor in str(refused(master, CommitBatch("q", 1)))
    assert (world.state.entry(injector), world.state.entry(cursor)) == before
    master.call(OpenInjector("two/two.in", "p"))
    master.call(CommitBatch("r", 1))
    assert sorted(master.core.catalog.damaged) == sorted([injector, cursor])


@pytest.mark.guarantee("G11", section="7.1")
def test_garbage_collection_spares_what_a_damaged_chunk_names() -> None:
    """This also holds for a master that has read the chunk while it was whole."""
    world, master = running()
    one, two = incarnation_of(world, "one"), incarnation_of(world, "two")
    mine, others = ([interval.journal for interval in world.catalog().tables[table]] for table in (one, two))
    damage(world, keys.chunk_key(one, 0))
    damaged = world.state.entry(keys.chunk_key(one, 0))
    master.handle(SnapshotLoaded(world.state.list("")))
    for name in ("one", "two"):
        master.call(CancelTopology(name, f"c{name}"))
    for hour in range(2, 5):
        master.tick(int(hours(hour)))
    assert world.state.entry(keys.chunk_key(one, 0)) == damaged
    assert all(map(world.has_journal, mine))
    assert not any(map(world.has_journal, others))
