"""What the master makes of a snapshot, in a cluster that has had the topology before (section 7.1; G1)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millwheel.master.messages import (
    CancelTopology,
    CommitBatch,
    RestoreTopology,
    RetireQuery,
    SetTopologyQuota,
    SubmitTopology,
)
from millwheel.model.incarnation import injector_group, new_incarnation, new_journal
from millwheel.model.time import seconds
from millwheel.rpc.v1 import catalog_pb2 as catalog

from .harness import Cluster, Master, topology

QUERY = "load/zeitgeist/queries"


def started() -> tuple[Cluster, Master]:
    cluster = Cluster()
    cluster.join("w")
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "first"))
    return cluster, master


def snapshot(cluster: Cluster, batches: Sequence[tuple[str, int]] = ()) -> RestoreTopology:
    """What a restore of a snapshot asks for that is taken now. Its journals exist in the store only in name."""
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
    return RestoreTopology(record, maps, (), cursors, drawn)


@pytest.mark.guarantee("G1", section="6.1")
def test_batches_after_the_snapshot_are_not_complete() -> None:
    cluster, master = started()
    master.call(CommitBatch(QUERY, 5))
    restore = snapshot(cluster, [(QUERY, 5)])
    master.call(CommitBatch(QUERY, 9))
    master.call(CommitBatch("later/zeitgeist/queries", 0))
    master.call(CommitBatch("load/another/queries", 7))
    master.call(CancelTopology("zeitgeist", "c"))
    master.call(restore)
    assert cluster.catalog().batches == {QUERY: 5, "load/another/queries": 7}


def test_a_retired_query_stays_retired() -> None:
    cluster, master = started()
    master.call(CommitBatch(QUERY, 5))
    restore = snapshot(cluster, [(QUERY, 5)])
    master.call(RetireQuery(QUERY))
    master.call(CancelTopology("zeitgeist", "c"))
    master.call(restore)
    assert QUERY in cluster.catalog().retired_queries


def test_the_quota_of_the_cluster_counts() -> None:
    cluster, master = started()
    restore = snapshot(cluster)
    master.call(SetTopologyQuota("zeitgeist", catalog.TopologyQuota(records_per_second=500)))
    master.call(CancelTopology("zeitgeist", "c"))
    master.call(restore)
    assert cluster.catalog().topologies["zeitgeist"].quota.records_per_second == 500


def test_a_restore_is_an_event() -> None:
    cluster, master = started()
    restore = snapshot(cluster)
    master.call(CancelTopology("zeitgeist", "c"))
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
    master.call(restore, now=seconds(2))
    after = cluster.catalog()
    assert after.injector_floors() == before.injector_floors(), "what is sent again is known"
    group = injector_group("zeitgeist/queries")
    assert after.injector_lives()[group] != before.injector_lives()[group]
