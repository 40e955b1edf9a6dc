"""What the master makes of a snapshot, in a cluster that has had the topology before (section 7.1; G1)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millwheel.master.messages import (
    AbandonRestore,
    BeginRestore,
    CancelTopology,
    CommitBatch,
    RestoreTopology,
    RetireQuery,
    SetTopologyQuota,
    SubmitTopology,
)
from millwheel.master.restores import repeated_restore
from millwheel.model.incarnation import injector_group, new_incarnation, new_journal
from millwheel.model.time import seconds
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.testing.store_effects import result_of

from .harness import Cluster, Master, topology

QUERY = "load/zeitgeist/queries"
NUMBER = 1_000_000


def started() -> tuple[Cluster, Master]:
    cluster = Cluster()
    cluster.join("w")
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "first"))
    return cluster, master


def snapshot(cluster: Cluster, batches: Sequence[tuple[str, int]] = ()) -> RestoreTopology:
    """What a restore of a snapshot asks for that is taken now, with the id "r". Its journals exist only in name."""
    record, maps = catalog.TopologyRecord(), {}
    record.CopyFrom(cluster.catalog().topologies["zeitgeist"])
    drawn = 1_000_000
    for name, former in sorted(record.incarnations.items()):
        drawn += 1
        incarnation = record.incarnations[name] = new_incarnation(name, drawn)
        maps[incarnation] = catalog.IntervalMapRecord(computation=name, topology="zeitgeist")
        for one in cluster.catalog().maps[former]:
            drawn += 1
            journal = new_journal(incarnation, drawn)
            maps[incarnation].intervals.add(keys=one.keys, journal=journal, sequencer=drawn)
    cursors = tuple(catalog.BatchCursorRecord(query=query, committed_batch=batch) for query, batch in batches)
    record.restore_request_id = "r"
    return RestoreTopology(NUMBER, record, maps, (), cursors, drawn)


def begin(restore: RestoreTopology) -> BeginRestore:
    """What comes before the restore."""
    record = catalog.RestoreRecord(topology="zeitgeist")
    for incarnation, one in restore.maps.items():
        record.incarnations.add(incarnation=incarnation, journals=[interval.journal for interval in one.intervals])
    return BeginRestore(NUMBER, record)


def write(cluster: Cluster, restore: RestoreTopology) -> None:
    """Do what the restore does in the store before its last transaction."""
    for incarnation, one in restore.maps.items():
        for interval in one.intervals:
            result_of(cluster.store.create_journal(interval.journal))
        cluster.store.states[incarnation] = {}


def left(cluster: Cluster, restore: RestoreTopology) -> set[str]:
    """What the store has of the restore."""
    journals = {interval.journal for one in restore.maps.values() for interval in one.intervals}
    return (journals & cluster.store.journals.keys()) | (restore.maps.keys() & cluster.store.states.keys())


@pytest.mark.guarantee("G1", section="6.1")
def test_batches_after_the_snapshot_are_not_complete() -> None:
    cluster, master = started()
    master.call(CommitBatch(QUERY, 5))
    restore = snapshot(cluster, [(QUERY, 5)])
    master.call(CommitBatch(QUERY, 9))
    master.call(CommitBatch("later/zeitgeist/queries", 0))
    master.call(CommitBatch("load/another/queries", 7))
    master.call(CancelTopology("zeitgeist", "c"))
    master.call(begin(restore))
    master.call(restore)
    assert cluster.catalog().batches == {QUERY: 5, "load/another/queries": 7}


def test_a_retired_query_stays_retired() -> None:
    cluster, master = started()
    master.call(CommitBatch(QUERY, 5))
    restore = snapshot(cluster, [(QUERY, 5)])
    master.call(RetireQuery(QUERY))
    master.call(CancelTopology("zeitgeist", "c"))
    master.call(begin(restore))
    master.call(restore)
    assert QUERY in cluster.catalog().retired_queries


def test_the_quota_of_the_cluster_counts() -> None:
    cluster, master = started()
    restore = snapshot(cluster)
    master.call(SetTopologyQuota("zeitgeist", catalog.TopologyQuota(records_per_second=500)))
    master.call(CancelTopology("zeitgeist", "c"))
    master.call(begin(restore))
    master.call(restore)
    assert cluster.catalog().topologies["zeitgeist"].quota.records_per_second == 500


def test_a_restore_is_an_event() -> None:
    cluster, master = started()
    restore = snapshot(cluster)
    master.call(CancelTopology("zeitgeist", "c"))
    master.call(begin(restore))
    master.call(restore)
    kept = cluster.catalog().events
    events = [catalog.EventRecord.FromString(kept[number]) for number in sorted(kept)]
    (event,) = [one for one in events if one.kind == "topology.restored"]
    assert (event.topology, event.text) == ("zeitgeist", "topology zeitgeist is restored: version 2")


@pytest.mark.guarantee("G7", section="7.2")
def test_a_restore_leaves_former_broadcasts_behind() -> None:
    """A worker may see the restored topology without the time in between. It compares these values."""
    cluster, master = started()
    restore, before = snapshot(cluster), cluster.catalog()
    master.call(CancelTopology("zeitgeist", "c"), now=seconds(1))
    master.call(begin(restore), now=seconds(2))
    master.call(restore, now=seconds(2))
    after = cluster.catalog()
    assert after.injector_floors() == before.injector_floors(), "what is sent again is known"
    group = injector_group("zeitgeist/queries")
    assert after.injector_lives()[group] != before.injector_lives()[group]


@pytest.mark.guarantee("G1", section="6.2")
def test_a_new_master_drops_what_a_restore_has_left() -> None:
    cluster, master = started()
    restore = snapshot(cluster)
    master.call(CancelTopology("zeitgeist", "c"))
    master.call(begin(restore))
    write(cluster, restore)
    master.tick(seconds(60))
    assert len(left(cluster, restore)) == 2 * len(restore.maps), "the restore goes on, however long it takes"
    successor = Master(cluster)
    successor.tick(seconds(61))
    assert not left(cluster, restore)
    assert not cluster.catalog().restores
    with pytest.raises(RequestError, match="was given up"):
        successor.call(restore)
    with pytest.raises(RequestError):
        master.call(restore)
    assert cluster.catalog().topologies["zeitgeist"].state == catalog.TOPOLOGY_STATE_CANCELLED
    successor.call(begin(restore))
    successor.call(restore)
    assert cluster.catalog().topologies["zeitgeist"].state == catalog.TOPOLOGY_STATE_RUNNING


@pytest.mark.guarantee("G1", section="6.2")
def test_a_restore_that_was_given_up_cannot_end() -> None:
    cluster, master = started()
    restore = snapshot(cluster)
    master.call(CancelTopology("zeitgeist", "c"))
    master.call(begin(restore))
    write(cluster, restore)
    master.call(AbandonRestore(NUMBER))
    assert not left(cluster, restore)
    assert not cluster.catalog().restores
    with pytest.raises(RequestError) as refused:
        master.call(restore)
    assert refused.value.reason == "RESTORE_ABANDONED"


@pytest.mark.guarantee("G1", section="6.2")
def test_to_give_up_a_complete_restore_drops_nothing() -> None:
    cluster, master = started()
    restore = snapshot(cluster)
    master.call(CancelTopology("zeitgeist", "c"))
    master.call(begin(restore))
    write(cluster, restore)
    master.call(restore)
    master.call(AbandonRestore(NUMBER))
    successor = Master(cluster)
    successor.tick(seconds(61))
    assert len(left(cluster, restore)) == 2 * len(restore.maps)
    assert not cluster.catalog().restores


def test_a_repeated_restore_has_its_first_answer() -> None:
    cluster, master = started()
    restore = snapshot(cluster)
    master.call(CancelTopology("zeitgeist", "c"))
    assert repeated_restore(cluster.catalog(), "zeitgeist", "r") is None
    master.call(begin(restore))
    made = master.call(restore)
    assert repeated_restore(cluster.catalog(), "zeitgeist", "r") == made
    assert repeated_restore(cluster.catalog(), "zeitgeist", "another") is None
    assert repeated_restore(cluster.catalog(), "zeitgeist", "") is None
    master.call(CancelTopology("zeitgeist", "d"))
    with pytest.raises(RequestError, match="cancelled since") as refused:
        repeated_restore(cluster.catalog(), "zeitgeist", "r")
    assert refused.value.reason == "RESTORE_CANCELLED"
