"""What a cluster needs for a fork, and which clients may feed one (7.1; G1)."""

from __future__ import annotations

import pytest

from millwheel.coordination.contract import Put
from millwheel.master.injection_plans import refuse_old_hashes
from millwheel.master.messages import (
    BeginRestore,
    CancelTopology,
    CommitBatch,
    OpenInjector,
    RestoreTopology,
    SubmitTopology,
    UpdateTopology,
)
from millwheel.master.services.routing import routing_of
from millwheel.model import catalog_keys as keys
from millwheel.model.formats import FORKS
from millwheel.model.incarnation import new_incarnation, new_journal
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.snapshots.forking import restored_record

from .harness import Cluster, Master, external, topology

NUMBER = 1_000_000


def started(number: int = FORKS) -> tuple[Cluster, Master]:
    cluster = Cluster()
    cluster.join("w")
    settings = catalog.ClusterSettingsRecord(authority_shards=1, format=number)
    cluster.transact((), (Put(keys.CLUSTER_SETTINGS, settings.SerializeToString()),))
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "first"))
    return cluster, master


def fork(cluster: Cluster, name: str = "next", *batches: catalog.BatchCursorRecord) -> RestoreTopology:
    """What the restore of a snapshot asks for that is taken now. Its journals exist only in name."""
    saved = cluster.catalog().topologies["zeitgeist"]
    record = restored_record(wire.SnapshotManifest(name="s", topology=saved), name)
    maps = {}
    for number, (computation, former) in enumerate(sorted(record.incarnations.items()), NUMBER + 1):
        incarnation = record.incarnations[computation] = new_incarnation(computation, number)
        maps[incarnation] = catalog.IntervalMapRecord(computation=computation, topology=name)
        for one in cluster.catalog().maps[former]:
            maps[incarnation].intervals.add(keys=one.keys, journal=new_journal(incarnation, number), sequencer=number)
    return RestoreTopology(NUMBER, record, maps, (), batches, NUMBER + 100, renamed=True)


def restore(master: Master, request: RestoreTopology) -> catalog.TopologyRecord:
    master.call(BeginRestore(NUMBER, catalog.RestoreRecord(topology=request.record.spec.name)))
    made = master.call(request)
    assert isinstance(made, catalog.TopologyRecord)
    return made


def refused(master: Master, request: RestoreTopology | OpenInjector) -> str:
    if isinstance(request, RestoreTopology):
        master.call(BeginRestore(NUMBER, catalog.RestoreRecord(topology=request.record.spec.name)))
    with pytest.raises(RequestError) as error:
        master.call(request)
    return error.value.reason


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_forks_routing_names_the_stream_of_its_hashes() -> None:
    cluster, master = started()
    restore(master, fork(cluster))
    known = cluster.catalog()
    assert routing_of(known, "next/queries").id_stream == "zeitgeist/queries"
    assert routing_of(known, "zeitgeist/queries").id_stream == ""
    assert {one.topology for one in routing_of(known, "next/queries").consumers} == {"next"}
    assert {one.topology for one in routing_of(known, "zeitgeist/queries").consumers} == {"zeitgeist"}


def test_older_clients_read_what_a_fork_produces() -> None:
    """Nothing of it is hashed. Only who injects must know of forks."""
    cluster, master = started()
    restore(master, fork(cluster))
    known = cluster.catalog()
    assert routing_of(known, "next/windows").id_stream == ""
    refuse_old_hashes(known, "next/windows", knows_id_stream=False)
    with pytest.raises(RequestError, match="of a version from before forks"):
        refuse_old_hashes(known, "next/queries", knows_id_stream=False)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_client_from_before_forks_is_refused_by_name() -> None:
    cluster, master = started()
    restore(master, fork(cluster))
    assert refused(master, OpenInjector("next/queries", "p", knows_id_stream=False)) == "CLIENT_TOO_OLD"
    assert ("next/queries", "p") not in cluster.catalog().injectors, "nothing waits for its watermark"
    assert master.call(OpenInjector("zeitgeist/queries", "p", knows_id_stream=False)).sequencer > 0
    assert master.call(OpenInjector("next/queries", "p")).sequencer > 0


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_cluster_of_an_older_format_has_no_forks() -> None:
    cluster, master = started(FORKS - 1)
    assert refused(master, fork(cluster)) == "FORMAT_TOO_OLD"
    assert restore(started()[1], fork(cluster)).spec.name == "next"


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_name_that_others_still_read_is_refused() -> None:
    cluster, master = started()
    restore(master, fork(cluster))
    reader = specs.TopologySpec(name="reader", streams=[external("next/queries")])
    reader.computations.add(name="reads", exactly_once=True, strong_productions=True).inputs.add(
        stream="next/queries", key=specs.KeySpec(fields=["text"])
    )
    master.call(SubmitTopology(reader, "r"))
    master.call(CancelTopology("next", "c"))
    assert refused(master, fork(cluster)) == "NAME_READ"
    assert restore(master, fork(cluster, "other")).spec.name == "other"


@pytest.mark.guarantee("G1", section="6.1")
def test_the_cursors_of_original_and_fork_are_apart() -> None:
    cluster, master = started()
    master.call(CommitBatch("load/zeitgeist/queries", 9))
    cursor = catalog.BatchCursorRecord(query="load/next/queries", committed_batch=5)
    restore(master, fork(cluster, "next", cursor))
    assert cluster.catalog().batches == {"load/zeitgeist/queries": 9, "load/next/queries": 5}


def test_an_update_keeps_the_fork_and_a_submission_ends_it() -> None:
    cluster, master = started()
    made = restore(master, fork(cluster))
    newer = specs.TopologySpec()
    newer.CopyFrom(made.spec)
    newer.code.digest = "cd" * 32
    assert master.call(UpdateTopology(newer, "u", 0)).fork == made.fork
    master.call(CancelTopology("next", "c"))
    assert not master.call(SubmitTopology(newer, "again")).HasField("fork")
    assert cluster.catalog().id_stream("next/queries") == "next/queries"


def test_the_event_says_of_what_it_is_a_fork() -> None:
    cluster, master = started()
    restore(master, fork(cluster))
    events = [catalog.EventRecord.FromString(one) for _, one in sorted(cluster.catalog().events.items())]
    (event,) = (one for one in events if one.kind == "topology.restored")
    assert (event.topology, event.text) == ("next", "topology next is restored: version 1, a fork of zeitgeist")
