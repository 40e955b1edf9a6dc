"""Interval maps that no single transaction can write are assigned, given up and cleared away in several (7.1, G11)."""

from __future__ import annotations

import pytest

from millwheel.master import change_plan
from millwheel.master.change_plan import MAX_OPERATIONS, MAX_TRANSACTION_BYTES
from millwheel.master.messages import (
    CancelTopology,
    Drop,
    IntervalName,
    MasterEffect,
    MasterEvent,
    ReleaseParents,
    SplitInterval,
    SubmitTopology,
    Transact,
)
from millwheel.master.settings import MasterSettings
from millwheel.model import interval_chunks
from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_table import NO_OWNER, check_coverage
from millwheel.rpc.failures import FailureCode, RequestError

from .harness import Master, World, computation, source, topology

SETTINGS = MasterSettings(intervals_per_computation=400, maps_per_transaction=2)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of up to 8 intervals: 400 of them are as many records as 12,000 are else."""
    monkeypatch.setattr(interval_chunks, "MAX_INTERVALS_PER_CHUNK", 8)
    monkeypatch.setattr(interval_chunks, "MIN_INTERVALS_PER_CHUNK", 3)


class Watched(Master):
    """Notes how large transactions are."""

    largest = (0, 0)

    def finish(self, effect: MasterEffect) -> MasterEvent | None:
        if isinstance(effect, Transact):
            operations = max(len(effect.compares), len(effect.puts) + len(effect.deletes))
            size = sum(len(put.key) + len(put.value) for put in effect.puts)
            self.largest = (max(self.largest[0], operations), max(self.largest[1], size))
        return super().finish(effect)


def three_large_maps(world: World) -> tuple[Watched, list[IncarnationId]]:
    """Three topologies with 400 intervals each, and 60 workers."""
    for number in range(60):
        world.join(f"w{number:02}")
    master = Watched(world, settings=SETTINGS)
    incarnations = []
    for name in ("one", "two", "three"):
        spec = topology(name, [source(f"{name}-in")], [computation(f"{name}-c", {f"{name}-in": "k"}, [])])
        record = master.call(SubmitTopology(spec, "r"))
        incarnations.append(record.incarnations[f"{name}-c"])
    return master, incarnations


def check(world: World, incarnations: list[IncarnationId]) -> None:
    known = world.catalog()
    for incarnation in incarnations:
        check_coverage(incarnation, known.tables[incarnation].intervals)
        for owner in known.tables[incarnation].owned:
            assert owner[1] == known.registration(owner[0]) > 0


@pytest.mark.paper(section="7.1")
def test_vanished_owners_are_replaced_in_several_transactions() -> None:
    world = World()
    master, incarnations = three_large_maps(world)
    check(world, incarnations)
    for number in range(0, 60, 2):
        world.leave(f"w{number:02}")
    before = world.state.revision
    master.run()
    check(world, incarnations)
    assert world.state.revision > before + 1
    assert master.largest[0] <= MAX_OPERATIONS
    assert master.largest[1] <= MAX_TRANSACTION_BYTES
    loads = [len(world.catalog().owned_by(f"w{number:02}")) for number in range(1, 60, 2)]
    assert max(loads) - min(loads) <= 8


def test_a_cancelled_topology_with_a_large_map_goes_bit_by_bit() -> None:
    world = World()
    master, incarnations = three_large_maps(world)
    journals = [interval.journal for interval in world.catalog().tables[incarnations[0]]]
    master.call(CancelTopology("one"))
    known = world.catalog()
    assert incarnations[0] not in known.tables
    assert not any(world.has_journal(journal) for journal in journals)
    check(world, incarnations[1:])
    assert master.largest[0] <= MAX_OPERATIONS


def test_a_cancelled_topology_has_no_owners_at_its_journals_end() -> None:
    world = World()
    master, incarnations = three_large_maps(world)
    master.ask(CancelTopology("two"))
    dropped = False
    while master.waiting or master.follow():
        if master.waiting:
            table = world.catalog().tables.get(incarnations[1])
            if isinstance(master.waiting[0], Drop) and table is not None:
                dropped = True
                assert set(table.owned) == {NO_OWNER}
            master.step()
    assert dropped


def test_a_submission_too_large_for_transactions_names_a_way_out() -> None:
    world = World()
    world.join("w1")
    master = Master(world, settings=SETTINGS)
    many = [computation(f"c{number}", {"in": "k"}, []) for number in range(3)]
    with pytest.raises(RequestError, match=r"one transaction, and a coordinator takes") as caught:
        master.call(SubmitTopology(topology("wide", [source("in")], many), "r"))
    assert caught.value.code is FailureCode.RESOURCE_EXHAUSTED
    assert "intervals_per_computation" in str(caught.value)
    assert world.catalog().topologies == {}


def test_logs_that_do_not_fit_into_the_submission_follow_it() -> None:
    world = World()
    world.join("w1")
    master = Watched(world)
    outputs = [f"out{number}" for number in range(150)]
    master.call(SubmitTopology(topology("many", [source("in")], [computation("c", {"in": "k"}, outputs)]), "r"))
    assert set(world.catalog().logs) == {f"many/{stream}" for stream in (*outputs, "dead-letters")}
    assert master.largest[0] <= MAX_OPERATIONS


@pytest.mark.guarantee("G11")
def test_parents_of_many_chunks_take_several_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.join("w1")
    master = Watched(world, settings=SETTINGS)
    spec = topology("one", [source("in")], [computation("c", {"in": "k"}, [])])
    incarnation = master.call(SubmitTopology(spec, "r")).incarnations["c"]
    for interval in list(world.catalog().tables[incarnation])[10::20]:
        master.call(SplitInterval(IntervalName(journal=interval.journal), interval.keys.start + b"0"))
    monkeypatch.setattr(change_plan, "MAX_CHUNK_BYTES", 1_200)
    monkeypatch.setattr(change_plan, "MAX_TRANSACTION_BYTES", 4_000)
    master.largest = (0, 0)
    calls = 0
    while waiting := {one.journal: one.sequencer for one in world.catalog().tables[incarnation] if one.parents}:
        assert master.call(ReleaseParents(waiting)).intervals
        calls += 1
    assert calls > 1
    assert 0 < master.largest[1] <= 4_000
