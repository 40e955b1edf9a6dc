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
from millwheel.model.interval_map import NO_OWNER, check_coverage
from millwheel.rpc.failures import FailureCode, RequestError

from .harness import Cluster, Master, computation, source, topology

SETTINGS = MasterSettings(intervals_per_computation=400, maps_per_transaction=2)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit chunks to 8 intervals. Then 400 intervals have as many chunks as 12,000 have normally."""
    monkeypatch.setattr(interval_chunks, "MAX_INTERVALS_PER_CHUNK", 8)
    monkeypatch.setattr(interval_chunks, "MIN_INTERVALS_PER_CHUNK", 3)


class Watched(Master):
    """Records the size of transactions."""

    largest = (0, 0)

    def finish(self, effect: MasterEffect) -> MasterEvent | None:
        if isinstance(effect, Transact):
            operations = max(len(effect.compares), len(effect.puts) + len(effect.deletes))
            size = sum(len(put.key) + len(put.value) for put in effect.puts)
            self.largest = (max(self.largest[0], operations), max(self.largest[1], size))
        return super().finish(effect)


def three_large_maps(cluster: Cluster) -> tuple[Watched, list[IncarnationId]]:
    """Three topologies with 400 intervals each, and 60 workers."""
    for number in range(60):
        cluster.join(f"w{number:02}")
    master = Watched(cluster, settings=SETTINGS)
    incarnations = []
    for name in ("one", "two", "three"):
        spec = topology(name, [source(f"{name}-in")], [computation(f"{name}-c", {f"{name}-in": "k"}, [])])
        record = master.call(SubmitTopology(spec, "r"))
        incarnations.append(record.incarnations[f"{name}-c"])
    return master, incarnations


def check(cluster: Cluster, incarnations: list[IncarnationId]) -> None:
    known = cluster.catalog()
    for incarnation in incarnations:
        check_coverage(incarnation, known.maps[incarnation].intervals)
        for owner in known.maps[incarnation].owned:
            assert owner[1] == known.registration(owner[0]) > 0


@pytest.mark.paper(section="7.1")
def test_vanished_owners_are_replaced_in_several_transactions() -> None:
    cluster = Cluster()
    master, incarnations = three_large_maps(cluster)
    check(cluster, incarnations)
    for number in range(0, 60, 2):
        cluster.leave(f"w{number:02}")
    before = cluster.state.revision
    master.run()
    check(cluster, incarnations)
    assert cluster.state.revision > before + 1
    assert master.largest[0] <= MAX_OPERATIONS
    assert master.largest[1] <= MAX_TRANSACTION_BYTES
    loads = [len(cluster.catalog().owned_by(f"w{number:02}")) for number in range(1, 60, 2)]
    assert max(loads) - min(loads) <= 8


def test_a_cancelled_topology_with_a_large_map_goes_bit_by_bit() -> None:
    cluster = Cluster()
    master, incarnations = three_large_maps(cluster)
    journals = [interval.journal for interval in cluster.catalog().maps[incarnations[0]]]
    master.call(CancelTopology("one"))
    known = cluster.catalog()
    assert incarnations[0] not in known.maps
    assert not any(cluster.has_journal(journal) for journal in journals)
    check(cluster, incarnations[1:])
    assert master.largest[0] <= MAX_OPERATIONS


def test_a_cancelled_topology_has_no_owners_at_its_journals_end() -> None:
    cluster = Cluster()
    master, incarnations = three_large_maps(cluster)
    master.ask(CancelTopology("two"))
    dropped = False
    while master.waiting or master.follow():
        if master.waiting:
            interval_map = cluster.catalog().maps.get(incarnations[1])
            if isinstance(master.waiting[0], Drop) and interval_map is not None:
                dropped = True
                assert set(interval_map.owned) == {NO_OWNER}
            master.step()
    assert dropped


def test_a_submission_too_large_for_transactions_names_a_way_out() -> None:
    cluster = Cluster()
    cluster.join("w1")
    master = Master(cluster, settings=SETTINGS)
    many = [computation(f"c{number}", {"in": "k"}, []) for number in range(3)]
    with pytest.raises(RequestError, match=r"one transaction, and a coordinator takes") as caught:
        master.call(SubmitTopology(topology("wide", [source("in")], many), "r"))
    assert caught.value.code is FailureCode.RESOURCE_EXHAUSTED
    assert "intervals_per_computation" in str(caught.value)
    assert cluster.catalog().topologies == {}


def test_logs_that_do_not_fit_into_the_submission_follow_it() -> None:
    cluster = Cluster()
    cluster.join("w1")
    master = Watched(cluster)
    outputs = [f"out{number}" for number in range(150)]
    master.call(SubmitTopology(topology("many", [source("in")], [computation("c", {"in": "k"}, outputs)]), "r"))
    assert set(cluster.catalog().logs) == {f"many/{stream}" for stream in (*outputs, "dead-letters")}
    assert master.largest[0] <= MAX_OPERATIONS


@pytest.mark.guarantee("G11")
def test_parents_of_many_chunks_take_several_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    cluster.join("w1")
    master = Watched(cluster, settings=SETTINGS)
    spec = topology("one", [source("in")], [computation("c", {"in": "k"}, [])])
    incarnation = master.call(SubmitTopology(spec, "r")).incarnations["c"]
    for interval in list(cluster.catalog().maps[incarnation])[10::20]:
        master.call(SplitInterval(IntervalName(journal=interval.journal), interval.keys.start + b"0"))
    monkeypatch.setattr(change_plan, "MAX_CHUNK_BYTES", 1_200)
    monkeypatch.setattr(change_plan, "MAX_TRANSACTION_BYTES", 4_000)
    master.largest = (0, 0)
    calls = 0
    while waiting := {one.journal: one.sequencer for one in cluster.catalog().maps[incarnation] if one.parents}:
        assert master.call(ReleaseParents(waiting)).intervals
        calls += 1
    assert calls > 1
    assert 0 < master.largest[1] <= 4_000
