"""Owners of intervals while workers come and go, and masters are deposed (sections 6.2, 7.1; G11)."""

from __future__ import annotations

import pytest

from millwheel.coordination.contract import TransactionResult
from millwheel.master.change_plan import PlanBuilder
from millwheel.master.messages import (
    CancelTopology,
    CommitBatch,
    CreateJournals,
    LoadsMeasured,
    StoreFailed,
    SubmitTopology,
    Transact,
    TransactionEnded,
)
from millwheel.master.settings import MasterSettings
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import Catalog
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.testing.store_effects import result_of

from .harness import Cluster, Master, topology


def running(intervals: int = 4, workers: tuple[str, ...] = ("w1", "w2")) -> tuple[Cluster, Master]:
    cluster = Cluster()
    for worker in workers:
        cluster.join(worker)
    master = Master(cluster, settings=MasterSettings(intervals_per_computation=intervals))
    master.call(SubmitTopology(topology(), "r1"))
    return cluster, master


def sequencers(known: Catalog) -> dict[str, int]:
    return {one.journal: one.sequencer for interval_map in known.maps.values() for one in interval_map.record.intervals}


def owners(known: Catalog) -> set[str]:
    return {one.owner.worker_id for interval_map in known.maps.values() for one in interval_map.record.intervals}


@pytest.mark.paper(section="7.1")
def test_a_vanished_workers_intervals_get_larger_sequencers() -> None:
    cluster, master = running()
    before = cluster.catalog()
    lost = {one.interval.journal for one in before.owned_by("w1")}
    cluster.leave("w1")
    master.run()
    after = cluster.catalog()
    assert owners(after) == {"w2"}
    for journal, sequencer in sequencers(after).items():
        if journal in lost:
            assert sequencer > before.drawn
        else:
            assert sequencer == sequencers(before)[journal]


@pytest.mark.paper(section="7.1")
def test_without_workers_intervals_wait_for_a_registration() -> None:
    cluster, master = running(workers=("w1",))
    cluster.leave("w1")
    master.run()
    before = cluster.catalog()
    assert owners(before) == {""}
    cluster.join("w9")
    master.run()
    after = cluster.catalog()
    assert owners(after) == {"w9"}
    assert all(sequencers(after)[journal] > old for journal, old in sequencers(before).items())


@pytest.mark.paper(section="6.2")
def test_a_worker_that_registers_again_gets_fresh_sequencers() -> None:
    cluster, master = running(workers=("w1",))
    before = cluster.catalog()
    cluster.leave("w1")
    cluster.join("w1")
    master.run()
    after = cluster.catalog()
    assert all(sequencers(after)[journal] > old for journal, old in sequencers(before).items())
    assert after.registration("w1") > before.registration("w1")
    assert len(after.owned_by("w1", after.registration("w1"))) == len(sequencers(after))
    assert after.owned_by("w1", before.registration("w1")) == []


@pytest.mark.paper(section="6.2")
def test_a_new_leader_notices_a_worker_that_registered_again() -> None:
    cluster, _ = running(workers=("w1",))
    before = sequencers(cluster.catalog())
    cluster.leave("w1")
    cluster.join("w1")
    Master(cluster, "successor").run()
    assert all(sequencer > before[journal] for journal, sequencer in sequencers(cluster.catalog()).items())


@pytest.mark.paper(section="7.1")
def test_a_refreshed_registration_moves_nothing() -> None:
    cluster, master = running()
    revision = cluster.state.revision
    cluster.join("w1")
    master.run()
    assert cluster.state.revision == revision + 1


def step_to(master: Master, kind: type) -> None:
    """Perform effects up to, and not including, the first of ``kind``."""
    while not isinstance(master.waiting[0], kind):
        master.step()


@pytest.mark.guarantee("G11", section="6.2")
def test_a_deposed_masters_delayed_transaction_changes_nothing() -> None:
    cluster = Cluster()
    cluster.join("w1")
    old = Master(cluster, "old")
    ticket = old.ask(SubmitTopology(topology(), "r1"))
    step_to(old, Transact)
    new = Master(cluster, "new")
    new.run()
    revision = cluster.state.revision
    old.run()
    assert cluster.state.revision == revision
    assert cluster.catalog().topologies == {}
    assert old.stepped_down
    answer = old.answers[ticket]
    assert isinstance(answer, RequestError)
    assert answer.code is FailureCode.UNAVAILABLE


def test_a_deposed_master_refuses_what_it_is_asked() -> None:
    cluster = Cluster()
    old = Master(cluster, "old")
    Master(cluster, "new")
    old.run()
    with pytest.raises(RequestError, match="no longer leads"):
        old.call(CancelTopology("zeitgeist"))


def test_a_failed_submissions_journals_are_skipped_not_adopted() -> None:
    cluster = Cluster()
    old = Master(cluster, "old")
    old.ask(SubmitTopology(topology(), "r1"))
    step_to(old, CreateJournals)
    created = old.waiting[0]
    assert isinstance(created, CreateJournals)
    new = Master(cluster, "new")
    new.run()
    old.step()
    result_of(cluster.store.fence(created.journals[0], 1))
    new.call(SubmitTopology(topology(), "r2"))
    used = set(sequencers(cluster.catalog()))
    assert not used & set(created.journals)
    assert all(cluster.has_journal(journal) for journal in used)


def test_an_unknown_outcome_is_settled_by_reading_again() -> None:
    for applied in (True, False):
        cluster = Cluster()
        master = Master(cluster)
        ticket = master.ask(SubmitTopology(topology(), "r1"))
        step_to(master, Transact)
        lost = master.waiting.pop(0)
        assert isinstance(lost, Transact)
        if applied:
            assert cluster.transact(lost.compares, lost.puts, lost.deletes).committed
        master.handle(TransactionEnded(lost.operation, None))
        master.run()
        assert isinstance(master.answers[ticket], catalog.TopologyRecord)
        assert len(cluster.catalog().topologies) == 1
        assert cluster.catalog().topologies["zeitgeist"].version == 1


def test_a_conflict_is_planned_again_from_a_new_reading() -> None:
    cluster = Cluster()
    cluster.join("w1")
    master = Master(cluster)
    ticket = master.ask(SubmitTopology(topology(), "r1"))
    step_to(master, Transact)
    cluster.leave("w1")
    cluster.join("w2")
    master.run()
    assert isinstance(master.answers[ticket], catalog.TopologyRecord)
    assert owners(cluster.catalog()) == {"w2"}


def test_a_late_answer_to_an_earlier_attempt_is_ignored() -> None:
    cluster = Cluster()
    master = Master(cluster)
    master.ask(CommitBatch("q", 1))
    step_to(master, Transact)
    first = master.waiting.pop(0)
    assert isinstance(first, Transact)
    master.handle(TransactionEnded(first.operation, None))
    step_to(master, Transact)
    assert master.core.step(TransactionEnded(first.operation, None), master.now) == []
    assert master.core.step(TransactionEnded(first.operation, TransactionResult(True, 99)), master.now) == []


def test_requests_wait_for_the_store_and_are_refused_if_it_fails() -> None:
    cluster = Cluster()
    master = Master(cluster)
    ticket = master.ask(SubmitTopology(topology(), "r1"))
    step_to(master, CreateJournals)
    create = master.waiting.pop(0)
    assert isinstance(create, CreateJournals)
    master.handle(StoreFailed(create.operation, "disk full", retry=False))
    master.run()
    answer = master.answers[ticket]
    assert isinstance(answer, RequestError)
    assert "disk full" in str(answer)
    assert cluster.catalog().topologies == {}


@pytest.mark.paper(section="6.2")
def test_no_plan_hands_an_interval_over_under_its_old_sequencer() -> None:
    cluster, _ = running()
    known = cluster.catalog()
    incarnation = known.topologies["zeitgeist"].incarnations["window-counter"]
    stolen = catalog.IntervalMapRecord()
    stolen.CopyFrom(known.maps[incarnation].record)
    stolen.intervals[0].owner.worker_id = "thief"
    with pytest.raises(ValueError, match="a new owner needs a sequencer above"):
        PlanBuilder(known).put_map(incarnation, stolen)
    stolen.intervals[0].sequencer = 1
    with pytest.raises(ValueError, match="a new owner needs a sequencer above"):
        PlanBuilder(known).put_map(incarnation, stolen)


@pytest.mark.guarantee("G11")
def test_no_plan_leaves_a_gap() -> None:
    cluster, _ = running()
    known = cluster.catalog()
    incarnation = known.topologies["zeitgeist"].incarnations["window-counter"]
    holed = catalog.IntervalMapRecord()
    holed.CopyFrom(known.maps[incarnation].record)
    del holed.intervals[2]
    with pytest.raises(ValueError, match="overlap or leave a gap"):
        PlanBuilder(known).put_map(incarnation, holed)


def test_many_maps_are_re_assigned_in_several_transactions() -> None:
    cluster = Cluster()
    cluster.join("w1")
    master = Master(cluster, settings=MasterSettings(maps_per_transaction=1))
    master.call(SubmitTopology(topology(), "r1"))
    revision = cluster.state.revision
    cluster.leave("w1")
    master.run()
    assert owners(cluster.catalog()) == {""}
    assert cluster.state.revision == revision + 1 + len(cluster.catalog().maps)


def test_key_parts_are_escaped() -> None:
    assert keys.split_key(keys.injector_key("a/b", "c%d")) == (keys.INJECTORS, ("a/b", "c%d"))
    assert keys.split_key(keys.SEQUENCER) == (keys.SEQUENCER, ())


def test_intervals_are_spread_over_machines_then_processes() -> None:
    cluster = Cluster()
    for worker, daemon in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        cluster.join(worker, daemon=daemon)
    master = Master(cluster, settings=MasterSettings(intervals_per_computation=20))
    master.call(SubmitTopology(topology(), "r1"))
    owned = {worker: len(cluster.catalog().owned_by(worker)) for worker in ("a1", "a2", "b1")}
    assert sum(owned.values()) == 42
    assert max(owned.values()) - min(owned.values()) <= 6
    assert owned["b1"] == max(owned.values())


@pytest.mark.paper(section="7.1")
def test_a_dead_workers_intervals_are_spread_by_what_they_cost() -> None:
    cluster, master = running(intervals=8, workers=("w1",))
    known = cluster.catalog()
    journals = sorted(one.interval.journal for one in known.owned_by("w1"))
    loads = {journal: 0.6 if index == 0 else 0.05 for index, journal in enumerate(journals)}
    master.handle(LoadsMeasured(loads))
    cluster.leave("w1")
    for worker in ("w2", "w3"):
        cluster.join(worker)
    master.run()
    after = cluster.catalog()
    costs = {worker: sum(loads[one.interval.journal] for one in after.owned_by(worker)) for worker in ("w2", "w3")}
    assert abs(costs["w2"] - costs["w3"]) <= 0.3, "by number they would be 0.55 apart"


def test_workers_bound_to_a_package_get_only_its_intervals() -> None:
    code = topology().code.digest
    cluster = Cluster()
    cluster.join("any")
    cluster.join("bound", package=code)
    cluster.join("other", package="cd" * 32)
    master = Master(cluster, settings=MasterSettings(intervals_per_computation=3))
    master.call(SubmitTopology(topology(), "r1"))
    known = cluster.catalog()
    assert len(known.owned_by("bound")) == 6
    assert [known.log_of(one.incarnation) is not None for one in known.owned_by("any")] == [True, True]
    assert known.owned_by("other") == []
    cluster.leave("bound")
    master.run()
    assert len(cluster.catalog().owned_by("any")) == 8
    cluster.leave("any")
    master.run()
    assert owners(cluster.catalog()) == {""}, "a worker bound to other code runs none of this"
