"""Sinks: numbered batches that always have the same records, one after the other for each shard (6.1)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from tests.connectors.given import Store, Table, at, running


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


@pytest.mark.parametrize("option", ["shards", "batch_records", "batch_delay"])
def test_options_are_positive(option: str) -> None:
    with pytest.raises(mw.UsageError, match=f"positive {option}"):
        selling(Store(), **{option: 0})
