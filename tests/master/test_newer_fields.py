"""A master of this version keeps the fields that a newer one has put into records (docs/upgrading.md)."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from millwheel.coordination.contract import Put
from millwheel.master.messages import (
    DrainTopology,
    FinishInjector,
    IntervalName,
    Intervals,
    MergeIntervals,
    MoveInterval,
    OpenInjector,
    ReleaseParents,
    RetireInjector,
    SplitInterval,
    SubmitTopology,
    UpdateTopology,
)
from millwheel.master.settings import MasterSettings
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import Catalog
from millwheel.rpc.v1 import catalog_pb2 as catalog

from .harness import Cluster, Master, source, topology

STREAM = "zeitgeist/queries"
_TAG = b"\xba\x06\x03"
"""The tag of field 103 of three bytes: no record has such a field."""


def newer(record: Message, text: bytes) -> bytes:
    """The record as a newer version wrote it: with a field that this version does not know."""
    return record.SerializeToString() + _TAG + text


def has(record: Message, text: bytes) -> bool:
    return _TAG + text in record.SerializeToString()


def with_newer_intervals() -> tuple[Cluster, Master]:
    """A running topology whose intervals have such a field: ``low`` below the key m, ``top`` from there on."""
    cluster = Cluster()
    for worker in ("w1", "w2"):
        cluster.join(worker)
    first = Master(cluster, settings=MasterSettings(split_points=(b"m",)))
    first.call(SubmitTopology(topology(), "r1"))
    first.call(OpenInjector(STREAM, "p"))
    for entry in cluster.state.list(keys.INTERVALS).entries:
        record = catalog.IntervalMapRecord.FromString(entry.value)
        made = catalog.IntervalMapRecord(computation=record.computation, topology=record.topology)
        for interval in record.intervals:
            made.intervals.append(
                catalog.IntervalRecord.FromString(newer(interval, b"top" if interval.keys.start else b"low"))
            )
        cluster.transact((), (Put(entry.key, made.SerializeToString()),))
    return cluster, Master(cluster, "n", MasterSettings(split_points=(b"m",)))


def at(key: bytes) -> IntervalName:
    return IntervalName("zeitgeist", "window-counter", key=key)


def here(known: Catalog, key: bytes) -> catalog.IntervalRecord:
    found = known.locate(known.topologies["zeitgeist"].incarnations["window-counter"], key)
    assert found is not None
    return found


def made(answer: object) -> list[catalog.IntervalRecord]:
    assert isinstance(answer, Intervals)
    return list(answer.intervals)


@pytest.mark.paper(section="7.1")
def test_moves_splits_and_releases_keep_newer_fields() -> None:
    cluster, master = with_newer_intervals()
    master.call(MoveInterval(at(b"a"), "w2" if here(cluster.catalog(), b"a").owner.worker_id == "w1" else "w1"))
    assert has(here(cluster.catalog(), b"a"), b"low")
    children = made(master.call(SplitInterval(at(b"a"), b"c")))
    assert [has(child, b"low") for child in children] == [True, True]
    assert [child.parents[0].journal for child in children] == [children[0].parents[0].journal] * 2
    freed = made(master.call(ReleaseParents({child.journal: child.sequencer for child in children})))
    assert [has(child, b"low") and not child.parents for child in freed] == [True, True]
    assert all(has(here(cluster.catalog(), key), b"low") for key in (b"a", b"c"))


@pytest.mark.paper(section="7.1")
def test_a_merge_keeps_newer_fields_of_both_parents() -> None:
    cluster, master = with_newer_intervals()
    parents = [here(cluster.catalog(), key).journal for key in (b"a", b"m")]
    (child,) = made(master.call(MergeIntervals(at(b"a"))))
    assert has(child, b"low")
    assert has(child, b"top")
    assert [parent.journal for parent in child.parents] == parents
    assert child.journal not in parents


def test_changes_of_a_topology_keep_newer_fields() -> None:
    cluster, _ = with_newer_intervals()
    key = keys.topology_key("zeitgeist")
    entry = cluster.state.get(key)
    assert entry is not None
    cluster.transact((), (Put(key, newer(catalog.TopologyRecord.FromString(entry.value), b"new")),))
    Master(cluster, "o").call(DrainTopology("zeitgeist"))
    record = cluster.catalog().topologies["zeitgeist"]
    assert has(record, b"new")
    assert record.state == catalog.TOPOLOGY_STATE_DRAINING


def test_lives_of_an_injector_process_keep_newer_fields() -> None:
    cluster, _ = with_newer_intervals()
    record = cluster.catalog().injectors[STREAM, "p"]
    cluster.transact((), (Put(keys.injector_key(STREAM, "p"), newer(record, b"new")),))
    master = Master(cluster, "o")
    reopened = master.call(OpenInjector(STREAM, "p"))
    assert has(reopened, b"new")
    assert reopened.sequencer > record.sequencer
    assert has(master.call(FinishInjector(STREAM, "p", reopened.sequencer)), b"new")
    assert has(master.call(RetireInjector(STREAM, "p", reopened.sequencer)), b"new")


@pytest.mark.guarantee("G1", section="7.1")
def test_a_life_begins_after_an_old_masters_update_ended_one() -> None:
    """A master without lives keeps a stream's number in the record when its update removes the stream."""
    cluster = Cluster()
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r1"))
    opened = master.call(OpenInjector(STREAM, "p")).sequencer
    record = cluster.catalog().topologies["zeitgeist"]
    del record.spec.streams[:]
    del record.spec.computations[:]
    record.spec.streams.append(source("zeitgeist/other"))
    record.version += 1
    assert record.injected_since, "as a field that the old master does not know"
    cluster.transact((), (Put(keys.topology_key("zeitgeist"), record.SerializeToString()),))
    Master(cluster, "n").call(UpdateTopology(topology(), "u2", 0))
    assert cluster.catalog().injector_floors()[f"injector/{STREAM}"] > opened
