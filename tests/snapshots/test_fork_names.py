"""The names of a fork: all but the hashes of ids are translated, and none is left out (6.1.1; G1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.client.injector.ids import IdHasher, drawn_scope, partition_scope
from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.snapshots.forking import begin_lives, refuse_unnamed_queries, restored_lives, restored_record
from millwheel.worker.dedup import BatchIds, Dedup, DeliveryIds, OpaqueIds, PositionIds, Sender, decode_delta
from millwheel.worker.dedup.renaming import renamed_delta, renamed_snapshot
from millwheel.worker.dedup.results import CheckOutcome, IdDelta
from millwheel.worker.dedup.snapshot import load
from millwheel.worker.interval.entry import encode
from millwheel.worker.names import RestoredNames
from tests.snapshots.shop import Order, Spent, Windows

FRESH = {"windows.3": "windows.13", "windows.3.j4": "windows.13.j14"}


def hashed(stream: str, *ids: str) -> list[bytes]:
    return IdHasher(stream, "s").hash_all(ids)


def facts(name: str, journal: str, letters: str, within: str) -> IdDelta:
    """Facts of all kinds, of streams of topology ``name``. Ids are hashed ``within`` the name of a topology."""
    stream = f"{name}/orders"
    group, process = f"injector/{stream}", f"injector/{stream}/p"
    partition, drawn = (scope.name for scope in (partition_scope(stream, "s", "0"), drawn_scope(stream, "p", 7)))
    return IdDelta(
        positions=[(journal, [1, 2, 5]), (partition, [7]), (drawn, [0, 1])],
        opaque=[(group, 60, hashed(f"{within}/orders", "a", "b"))],
        batches=[
            (f"load/{stream}", 3, hashed(f"{within}/orders", "c")),
            (f"dead-letters/{letters}", 1, [b"d" * 16]),
        ],
        admitted=[(journal, ""), (partition, process), (drawn, process)],
        marks=[(journal, 2, []), (partition, 3, [])],
        retired=["gone.1.j1", drawn_scope(stream, "p", 5).name],
        sequencers=[("", f"{group}/", 5), ("", process, 7), (journal.rpartition(".")[0], (b"", None), 4)],
        horizons=[(group, 20, 20)],
    )


def original() -> IdDelta:
    return facts("shop", "windows.3.j4", "shop/dead-letters.9", "shop")


def forked() -> RestoredNames:
    return RestoredNames({**FRESH, "shop/dead-letters.9": "next/dead-letters.19"}, "shop", "next")


def expected() -> IdDelta:
    found = facts("next", "windows.13.j14", "next/dead-letters.19", "shop")
    found.horizons = []
    return found


def receiver(*, based: bool) -> Dedup:
    """A receiver of the fork that was restored from an entry or from a base."""
    names, made = forked(), Dedup(ALL_KEYS, "totals.20.j21")
    if not based:
        made.replay(decode_delta(renamed_delta(original().to_wire(), names)))
        return made
    former = Dedup(ALL_KEYS, "totals.5.j6")
    former.replay(original())
    load(made.tables, [renamed_snapshot(blob, names) for blob in former.snapshot().blobs], {}, {})
    return made


def fresh(dedup: Dedup, ids: DeliveryIds) -> int:
    """How many of the records of process p count as new."""
    count = len(ids.positions) if isinstance(ids, PositionIds) else len(ids.ids)
    sender = Sender("injector/next/orders/p", 30, None, "injector/next/orders")
    verdict = dedup.check(ids, [b"k"] * count, [100] * count, sender)
    return len(verdict.fresh_indexes)


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("based", [False, True], ids=["entries", "base"])
def test_a_fork_knows_the_records_of_its_original(based: bool) -> None:
    dedup = receiver(based=based)
    assert fresh(dedup, PositionIds("next/orders/s/p:0", 0, [7, 8])) == 1
    assert fresh(dedup, OpaqueIds(hashed("shop/orders", "a", "b", "new"))) == 1
    assert fresh(dedup, BatchIds("load/next/orders", 3, hashed("shop/orders", "c", "new"))) == 1
    assert fresh(dedup, BatchIds("load/next/orders", 2, hashed("shop/orders", "early"))) == 0
    assert fresh(dedup, OpaqueIds(hashed("next/orders", "a", "b"))) == 2, "what is hashed keeps the original's name"


@pytest.mark.guarantee("G1", section="6.1.1")
def test_no_name_of_the_original_is_left() -> None:
    assert decode_delta(renamed_delta(original().to_wire(), forked())).to_wire() == expected().to_wire()
    former, made = Dedup(ALL_KEYS, "totals.5.j6"), Dedup(ALL_KEYS, "totals.5.j6")
    former.replay(original())
    made.replay(expected())
    made.tables.opaque_source("injector/next/orders")
    blobs = tuple(renamed_snapshot(blob, forked()) for blob in former.snapshot().blobs)
    assert blobs == made.snapshot().blobs
    assert not any(b"shop/" in blob for blob in (*blobs, encode(renamed_delta(original().to_wire(), forked()))))


NAME = st.sampled_from(["injector", "a", "a.b", "replay", "dead-letters"])


@given(NAME, NAME, NAME, NAME, st.text(max_size=4))
def test_names_become_those_that_the_fork_would_give(
    topology: str, fork: str, stream: str, process: str, partition: str
) -> None:
    names = RestoredNames({}, topology, fork)
    of, becomes = f"{topology}/{stream}", f"{fork}/{stream}"
    for end in ("", "/", f"/{process}"):
        assert names.group(f"injector/{of}{end}") == f"injector/{becomes}{end}"
    assert names(partition_scope(of, process, partition).name) == partition_scope(becomes, process, partition).name
    assert names(drawn_scope(of, process, 3).name) == drawn_scope(becomes, process, 3).name
    assert names.query(f"{process}/{of}") == f"{process}/{becomes}"
    assert names("windows.3.j4") == "windows.3.j4"


def topology() -> mw.Topology:
    made = mw.Topology("shop")
    made.source("orders", Order)
    made.add(
        Windows, inputs={"orders": mw.key("customer")}, outputs={"spent": Spent, "late": Order}, late=mw.divert("late")
    )
    return made


def manifest() -> wire.SnapshotManifest:
    record = catalog.TopologyRecord(spec=topology().to_spec(specs.CodeReference(digest="ab")), request_id="r")
    record.injected_since["shop/orders"] = 5
    record.quota.intervals = 7
    record.cancelled_by.append("c")
    return wire.SnapshotManifest(name="monday", taken_at_us=9, topology=record)


def test_a_forks_spec_is_that_of_the_renamed_program() -> None:
    record = restored_record(manifest(), "next")
    assert record.spec == topology().named("next").to_spec(specs.CodeReference(digest="ab"))
    origin = catalog.ForkOrigin(topology="shop", snapshot="monday", taken_at_us=9, id_topology="shop")
    assert record == catalog.TopologyRecord(spec=record.spec, fork=origin, injected_since={"next/orders": 5})
    assert restored_record(manifest(), "shop") == manifest().topology


@pytest.mark.guarantee("G1", section="6.1.1")
def test_forks_of_forks_hash_within_the_first_name() -> None:
    made = manifest()
    for name in ("next", "third", "next"):
        before = made.topology.spec.name
        made.topology.CopyFrom(restored_record(made, name))
        assert (made.topology.fork.topology, made.topology.fork.id_topology) == (before, "shop")
    assert restored_record(made, "next").fork == made.topology.fork, "a restore under its own name changes nothing"


def test_a_query_without_its_stream_has_no_fork() -> None:
    names = forked()
    for query in ("load/shop/orders", "dead-letters/shop/dead-letters.9"):
        names.query(query)
    refuse_unnamed_queries(names, "next")
    assert names.query("load") == "load"
    with pytest.raises(RequestError, match="records of query 'load' are in it"):
        refuse_unnamed_queries(names, "next")


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("based", [False, True], ids=["entries", "base"])
def test_a_fresh_injector_is_below_no_restored_horizon(based: bool) -> None:
    """The group has no watermark yet. A delivery that is sent again for ever would stop the stream for good."""
    dedup = receiver(based=based)
    sender = Sender("injector/next/orders/p", 30, None, "injector/next/orders", MIN_TIMESTAMP)
    verdict = dedup.check(OpaqueIds(hashed("shop/orders", "a", "new")), [b"k"] * 2, [100] * 2, sender)
    assert (verdict.outcome, list(verdict.fresh_indexes)) == (CheckOutcome.CHECKED, [1])


def lived(names: RestoredNames, *, based: bool, floor: bool) -> Dedup:
    """A receiver of a fork whose original has had two lives of a stream: id "old" is of the first, "a" of the second.

    ``floor``: the journal has the floor of the second life, number 5. Without it, it is of an earlier version.
    """
    group, process = "injector/shop/orders", "injector/shop/orders/p"
    first = IdDelta(opaque=[(group, 60, hashed("shop/orders", "old"))], sequencers=[("", process, 3)])
    begun = [("", f"{group}/", 5)] if floor else []
    second = IdDelta(opaque=[(group, 60, hashed("shop/orders", "a"))], sequencers=[*begun, ("", process, 7)])
    third = IdDelta(opaque=[(group, 60, hashed("shop/orders", "b"))], sequencers=[("", process, 9)])
    made = Dedup(ALL_KEYS, "totals.20.j21")
    if based:
        former = Dedup(ALL_KEYS, "totals.5.j6")
        for one in (first, second):
            former.replay(one)
        load(made.tables, [renamed_snapshot(blob, names) for blob in former.snapshot().blobs], {}, {})
    for one in (third,) if based else (first, second, third):
        made.replay(decode_delta(renamed_delta(one.to_wire(), names)))
    return made


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("floor", [True, False], ids=["floor", "earlier"])
@pytest.mark.parametrize("based", [False, True], ids=["entries", "base"])
def test_a_forks_receivers_know_its_life_by_its_number(based: bool, floor: bool) -> None:
    """They keep their ids when the catalog shows it. A reader of an earlier topology of the name drops its own."""
    names = RestoredNames({}, "shop", "next", {"injector/next/orders": 5}, 20).of_journal()
    dedup = lived(names, based=based, floor=floor)
    dedup.begin_life("injector/next/orders", 20, first=True)
    assert fresh(dedup, OpaqueIds(hashed("shop/orders", "a", "b", "new"))) == 1
    reader = Dedup(ALL_KEYS, "reads.9.j10")
    for row in (
        IdDelta(admitted=[("next/orders/s/p:0", "injector/next/orders/p")]),
        IdDelta(positions=[("next/orders/s/p:0", [0])]),
    ):
        reader.replay(row)
    reader.begin_life("injector/next/orders", 20, first=True)
    assert fresh(reader, PositionIds("next/orders/s/p:0", 0, [0])) == 1


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_forks_injected_streams_begin_lives() -> None:
    record = restored_record(manifest(), "next")
    begin_lives(record, 20)
    assert dict(record.injected_since) == {"next/orders": 20}
    assert restored_lives(manifest(), "next") == {"injector/next/orders": 5}
