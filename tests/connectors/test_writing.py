"""Sinks: numbered batches that always have the same records, one after the other for each shard (6.1)."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from copy import copy
from typing import Any

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.sdk.compiled import compile_computation
from tests.connectors.given import Numbers, Store, Table, World, at, running


def selling(store: Store, **options: Any) -> mw.Topology:
    topology = mw.Topology("shop")
    topology.source("sales", int).key_by(lambda value: value % 5).to("table", Table(store), **options)
    return topology


@pytest.mark.guarantee("G1")
@given(
    sales=st.lists(st.integers(0, 999), max_size=30),
    crash_at=st.sets(st.integers(0, 30)),
    before=st.integers(0, 2),
    after=st.integers(0, 2),
    shards=st.integers(1, 3),
)
def test_each_record_is_written_once(
    sales: list[int], crash_at: set[int], before: int, after: int, shards: int
) -> None:
    store = Store()
    with running(selling(store, shards=shards, batch_records=4)) as harness:
        store.breaks_before, store.breaks_after = before, after
        for number, value in enumerate(sales):
            with suppress(ConnectionError, TimeoutError):
                if number in crash_at:
                    harness.crash()
            with suppress(ConnectionError, TimeoutError):
                harness.send("sales", value, at(number))
        for _ in range(6):
            with suppress(ConnectionError, TimeoutError):
                harness.advance_clock(mw.seconds(60))
        assert sorted(store.values()) == sorted(sales)
        for key in range(5):
            own = [value for value in sales if value % 5 == key]
            assert [value for value in store.values() if value % 5 == key] == own


def test_a_batch_waits_for_a_moment_only() -> None:
    store = Store()
    with running(selling(store, batch_delay=mw.seconds(2))) as harness:
        harness.send("sales", 1, at(1))
        harness.send("sales", 2, at(2))
        assert store.values() == []
        harness.advance_clock(mw.seconds(2))
        assert list(store.batches.values()) == [[(1, at(1)), (2, at(2))]]


def test_a_full_batch_is_written_at_once() -> None:
    store = Store()
    with running(selling(store, batch_records=2)) as harness:
        for number in range(5):
            harness.send("sales", number, at(number))
        assert [len(records) for records in store.batches.values()] == [2, 2]


def test_large_records_make_small_batches() -> None:
    store = Store()
    topology = mw.Topology("shop")
    topology.source("texts", str).to("table", Table(store))
    with running(topology) as harness:
        for number in range(4):
            harness.send("texts", f"{number}" * 300_000, at(number))
        harness.advance_clock(mw.seconds(1))
        assert [len(records) for records in store.batches.values()] == [1, 1, 1, 1]


def test_a_writer_stays_open_between_batches() -> None:
    store = Store()
    with running(selling(store, batch_records=1)) as harness:
        harness.send("sales", 1, at(1))
        harness.send("sales", 2, at(2))
        assert [(place.sink, place.shard, place.shards) for place in store.opened] == [("shop/table", 0, 1)]
        store.breaks_before = 1
        with pytest.raises(ConnectionError):
            harness.send("sales", 3, at(3))
        harness.advance_clock(mw.seconds(60))
        assert len(store.opened) == 2


def test_a_topology_that_comes_back_counts_from_one() -> None:
    store = Store()
    for later in (0, 60):
        with running(selling(store, batch_records=1), now=at(later)) as harness:
            harness.send("sales", later, at(1))
    assert sorted(store.values()) == [0, 60]
    assert {number for _, _, _, number in store.batches} == {1}


def test_key_inspect_shows_what_was_written() -> None:
    with running(selling(Store(), batch_records=2)) as harness:
        for number in range(4):
            harness.send("sales", number, at(number))
        state = harness.state("table", "0")
        assert (state.batch, state.records, state.at) == (2, 4, harness.now)


def test_the_type_of_what_is_written_is_known() -> None:
    topology = mw.Topology("shop")
    mapped = topology.source("sales", int).map(lambda value: value)
    with pytest.raises(mw.UsageError, match="is not known"):
        mapped.to("table", Table(Store()))


class Sale(msgspec.Struct):
    item: str


class Priced(msgspec.Struct):
    item: str
    cents: int = 0


class Named(msgspec.Struct):
    name: str


def test_equal_ids_mean_equal_batches() -> None:
    """A snapshot that is restored makes batches under the former numbers. They have other ids if their records differ,
    or those of a batch before them."""
    ids: list[list[str]] = []
    for sales in ([1, 2, 3], [1, 2, 3], [1, 9, 3]):
        store, kept = Store(), []
        with running(selling(store, batch_records=1)) as harness:
            for number, value in enumerate(sales):
                harness.send("sales", value, at(number))
                kept.append(store.last["shop/table", 0][1])
        ids.append(kept)
    first, same, other = ids
    assert first == same
    assert (first[0] == other[0], first[1] == other[1], first[2] == other[2]) == (True, False, False)


@pytest.mark.guarantee("G1")
def test_a_fork_writes_under_its_own_name() -> None:
    """Also what was in flight in the snapshot, and with an open writer of the original in the process."""
    store = Store()
    topology = selling(store, batch_records=2)
    with running(topology) as harness:
        harness.send_all("sales", [(1, at(1)), (2, at(2))])
        store.breaks_before = 1
        with pytest.raises(ConnectionError):
            harness.send_all("sales", [(3, at(3)), (4, at(4))])
        harness.send("sales", 5, at(5))
        fork = copy(topology)
        fork.name = "fork"
        harness._cluster.load(fork)  # noqa: SLF001  # a harness restores no snapshot
        harness.crash()
        harness.advance_clock(mw.seconds(60))
        harness.send_all("sales", [(6, at(6)), (7, at(7))])
        (_, run, _, _), *_ = store.batches
        later = {key[1] for key in store.batches} - {run}
        assert len(later) == 1
        assert min(later) > run
        assert [(*key[:1], *key[2:], [value for value, _ in records]) for key, records in store.batches.items()] == [
            ("shop/table", 0, 1, [1, 2]),
            ("fork/table", 0, 2, [3, 4]),
            ("fork/table", 0, 1, [5]),
            ("fork/table", 0, 2, [6, 7]),
        ]


@pytest.mark.parametrize("name", ["sales-splits", "sales-reader", "table-batches", "table"])
def test_the_remedy_of_a_connector_can_be_done(name: str) -> None:
    """Regression: it was `on_failure=`, which neither `source` nor `to` takes."""
    program = compile_computation(reading(World({}), Store(), lambda value: value), name)
    assert "millwheel topology update" in program.remedy
    assert "on_failure" not in program.remedy
    said = {"sales-splits": "split", "sales-reader": "split", "table-batches": "`filter`", "table": "nothing is lost"}
    assert said[name] in program.remedy


def reading(world: World, store: Store, key: Any, **options: Any) -> mw.Topology:
    topology = mw.Topology("shop")
    topology.source("sales", int, Numbers(world)).key_by(key).to("table", Table(store), **options)
    return topology


@pytest.mark.guarantee("G15")
def test_an_update_changes_neither_shards_nor_key() -> None:
    world, store = World({"a": [(1, at(1))]}, final=False), Store()
    with running(reading(world, store, lambda value: value % 5, shards=2)) as harness:
        with pytest.raises(mw.TopologyError, match="another shard"):
            harness.update(reading(world, store, lambda value: value % 5, shards=3))
        with pytest.raises(mw.TopologyError, match="another shard"):
            harness.update(reading(world, store, lambda value: value % 7, shards=2))
        harness.update(reading(world, store, lambda value: value % 5, shards=2, batch_records=7))


def test_an_update_may_change_the_shards_of_records_without_keys() -> None:
    world, store = World({"a": [(1, at(1))]}, final=False), Store()

    def unkeyed(shards: int, factor: int) -> mw.Topology:
        topology = mw.Topology("shop")
        numbers = topology.source("sales", int, Numbers(world)).map(lambda value: factor * value, to=int)
        numbers.to("table", Table(store), shards=shards)
        return topology

    with running(unkeyed(1, 10)) as harness:
        harness.update(unkeyed(3, 20))
        world.splits["a"].append((2, at(2)))
        harness.advance_clock(mw.seconds(1))
        assert sorted(store.values()) == [10, 40]


@pytest.mark.parametrize(
    ("before", "after", "fits"),
    [
        (Sale, Priced, True),
        (Sale, Named, False),
        (int, str, False),
        (Int64Value, Int64Value, True),
        (Int64Value, StringValue, False),
    ],
)
def test_an_update_to_another_record_type(before: Any, after: Any, fits: bool) -> None:
    def mapped(kind: Any) -> mw.Topology:
        topology = mw.Topology("shop")
        numbers = topology.source("sales", int, Numbers(World({}, final=False)))
        numbers.map(lambda value: kind(value), to=kind).to("table", Table(Store()))
        return topology

    with running(mapped(before)) as harness:
        if fits:
            harness.update(mapped(after))
        else:
            with pytest.raises(mw.TopologyError, match=r"table\.batches|table-batches"):
                harness.update(mapped(after))


def test_small_records_fit_in_a_batch() -> None:
    store, topology = Store(), mw.Topology("shop")
    topology.source("sales", int).to("table", Table(store), batch_records=1_000_000)
    with running(topology) as harness:
        harness.send_all("sales", [(number % 100, at(number / 1_000)) for number in range(80_000)])
        harness.advance_clock(mw.seconds(1))
        assert len(store.values()) == 80_000
        assert max(len(records) for records in store.batches.values()) < 40_000


def test_a_record_that_fits_in_no_batch_is_refused() -> None:
    store, topology = Store(), mw.Topology("shop")
    topology.source("texts", str).to("table", Table(store))
    with running(topology) as harness:
        harness.send("texts", "x" * ((1 << 20) - 600), at(1))
        harness.advance_clock(mw.seconds(1))
        assert [len(text) for text in store.values()] == [(1 << 20) - 600]
        with pytest.raises(mw.TooLargeError, match=r"a record for the sink 'shop/table' has 1,048,571 bytes"):
            harness.send("texts", "x" * ((1 << 20) - 10), at(2))


@pytest.mark.guarantee("G7")
def test_the_watermark_waits_for_the_oldest_unwritten_record() -> None:
    store = Store()
    with running(selling(store, batch_records=3, batch_delay=mw.hours(1))) as harness:
        harness.send("sales", 1, at(100))
        harness.send("sales", 2, at(5))
        harness.advance(at(500))
        assert (harness.watermark("table"), store.values()) == (at(5), [])
        store.breaks_before = 1
        with pytest.raises(ConnectionError):
            harness.send("sales", 3, at(600))
        assert (harness.watermark("table"), store.values()) == (at(5), [])
        harness.advance_clock(mw.seconds(60))
        assert (harness.watermark("table"), store.values()) == (at(500), [1, 2, 3])


@pytest.mark.guarantee("G7")
@given(steps=st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=30), together=st.booleans())
def test_the_watermark_never_overtakes_unwritten_records(steps: list[tuple[int, bool]], together: bool) -> None:
    """A late record holds the watermark where it was. ``known``: where that was when a value came last."""
    store, highest, all_sent, known = Store(), 0, list[int](), dict[int, int]()
    with running(selling(store, batch_records=4, batch_delay=mw.hours(1))) as harness:
        for second, advances in steps:
            if advances and second > highest:
                highest = second
                harness.advance(at(second))
            sent = [second, second // 2] if together else [second]
            harness.send_all("sales", [(one, at(one)) for one in sent])
            all_sent += sent
            known |= dict.fromkeys(sent, highest)
            waiting = Counter(all_sent) - Counter(store.values())
            assert all(harness.watermark("table") <= at(max(one, known[one])) for one in waiting)


def test_what_is_no_sink_is_refused() -> None:
    stream = mw.Topology("shop").source("sales", int)
    sinks: list[tuple[Any, str]] = [(Table, "not the class Table"), ("table.db", "not 'table.db'")]
    for sink, why in sinks:
        with pytest.raises(mw.UsageError, match=why):
            stream.to("table", sink)


def test_the_name_of_a_sink_leaves_place_for_its_batches() -> None:
    topology = mw.Topology("shop")
    stream = topology.source("sales", int)
    stream.to("t" * 55, Table(Store()))
    topology.check()
    with pytest.raises(mw.UsageError, match="up to 55 characters"):
        stream.to("t" * 56, Table(Store()))


@pytest.mark.parametrize("option", ["shards", "batch_records", "batch_delay"])
def test_options_are_positive(option: str) -> None:
    with pytest.raises(mw.UsageError, match=f"positive {option}"):
        selling(Store(), **{option: 0})
