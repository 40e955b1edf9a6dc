"""The latest record of each key, and the join with it, against loops over all records (G1, G13)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000


class Order(msgspec.Struct, frozen=True, tag=True):
    id: int
    number: int


class Price(msgspec.Struct, frozen=True, tag=True):
    order: int
    number: int


class Pair(msgspec.Struct, frozen=True, order=True):
    order: int
    price: int = -1


def pair(order: Order, price: Price | None) -> Pair:
    return Pair(order.number, price.number if price else -1)


Event = tuple[int, Order | Price]
events_of = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 2), st.booleans(), st.integers(0, 3)), max_size=14
).map(
    lambda given: [
        (at, Order(key, number) if left else Price(key, price)) for number, (at, key, left, price) in enumerate(given)
    ]
)


def at(offset: int) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + offset)


def run(topology: mw.Topology, events: list[Event], crash_at: int, lag: int | None = None) -> TopologyHarness:
    harness = TopologyHarness(topology, split_at=["1"])
    for number, (time, event) in enumerate(events):
        if number == crash_at:
            harness.crash()
        harness.send("orders" if isinstance(event, Order) else "prices", event, timestamp=at(time))
        if lag is not None:  # nothing is late
            harness.advance(at(min([time - lag, *(later for later, _ in events[number + 1 :])])))
    return harness


def shop() -> tuple[mw.Topology, Any, Any]:
    topology = mw.Topology("shop")
    return topology, topology.source("orders", Order).key_by("id"), topology.source("prices", Price).key_by("order")


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("outer", [False, True])
@given(events=events_of, crash_at=st.integers(0, 14), lag=st.none() | st.integers(0, 4))
def test_a_join_with_a_table_takes_what_arrived_last(
    outer: bool, events: list[Event], crash_at: int, lag: int | None
) -> None:
    topology, orders, prices = shop()
    orders.join_latest("joined", prices, pair, Pair, outer=outer, removes=lambda price: price.number == 0)
    harness = run(topology, events, crash_at, lag)
    table: dict[int, Price] = {}
    expected = []
    for time, event in events:
        if isinstance(event, Order):
            if event.id in table or outer:
                expected.append((pair(event, table.get(event.id)), at(time)))
        elif event.number == 0:
            table.pop(event.order, None)
        else:
            table[event.order] = event
    assert [(one.value, one.timestamp) for one in harness.produced("joined")] == expected
    for key in range(3):
        assert harness.state("joined", key) == ([table[key]] if key in table else None)


@pytest.mark.guarantee("G1")
@given(events=events_of, crash_at=st.integers(0, 14), lag=st.none() | st.integers(0, 4))
def test_the_latest_record_does_not_depend_on_arrival(events: list[Event], crash_at: int, lag: int | None) -> None:
    topology, _, prices = shop()
    prices.latest("latest")
    harness = run(topology, events, crash_at, lag)
    newest: dict[int, tuple[int, bytes, Price]] = {}
    for time, event in events:
        if isinstance(event, Price):
            found = time, msgspec.msgpack.encode(event), event
            newest[event.order] = max(newest.get(event.order, found), found)
    assert {one.value.order: (one.timestamp - BEGIN, one.value) for one in harness.produced("latest")} == {
        key: (time, value) for key, (time, _, value) in newest.items()
    }
    ranks = [(one.value.order, one.timestamp, msgspec.msgpack.encode(one.value)) for one in harness.produced("latest")]
    for key in range(3):
        mine = [rank for rank in ranks if rank[0] == key]
        assert mine == sorted(set(mine)), "each is newer than those before"


@pytest.mark.guarantee("G1")
@given(events=events_of, crash_at=st.integers(0, 14), lag=st.none() | st.integers(0, 4))
def test_a_tie_decides_what_is_latest_of_one_time(events: list[Event], crash_at: int, lag: int | None) -> None:
    """Regression: a correction with the timestamp of what it corrects was dropped if its encoding was smaller."""
    topology, _, prices = shop()
    prices.latest("latest", ties=lambda price: -price.number)
    harness = run(topology, events, crash_at, lag)
    newest: dict[int, tuple[int, int]] = {}
    for time, event in events:
        if isinstance(event, Price):
            newest[event.order] = max(newest.get(event.order, (time, -event.number)), (time, -event.number))
    last = {one.value.order: (one.timestamp - BEGIN, -one.value.number) for one in harness.produced("latest")}
    assert last == newest


def test_a_tie_that_no_record_has_is_refused() -> None:
    """It would fail only once two records have the same timestamp."""
    _, _, prices = shop()
    with pytest.raises(mw.UsageError, match="Price has no field 'version'"):
        prices.latest("latest", ties="version")


class Both(msgspec.Struct, frozen=True):
    order: int = -1
    price: int = -1


def both(order: Order | None, price: Price | None) -> Both:
    return Both(order.number if order else -1, price.number if price else -1)


Newest = tuple[int, bytes, Any]


def changes(events: list[Event], outer: str) -> tuple[list[tuple[Both, int]], dict[int, Both]]:
    """The results of a join of two tables, and the result of the newest records of each key."""
    tables: dict[tuple[int, type], Newest] = {}
    results, last = [], {}
    for time, event in events:
        key, kind = event.id if isinstance(event, Order) else event.order, type(event)
        found = time, msgspec.msgpack.encode(event), event
        if (key, kind) in tables and tables[key, kind][:2] >= found[:2]:
            continue
        tables[key, kind] = found
        order, price = tables.get((key, Order)), tables.get((key, Price))
        if (order or outer in ("right", "both")) and (price or outer in ("left", "both")):
            result = both(order[2] if order else None, price[2] if price else None)
            results.append((result, max(one[0] for one in (order, price) if one)))
            last[key] = result
    return results, last


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("outer", ["", "left", "right", "both"])
@given(events=events_of, crash_at=st.integers(0, 14), lag=st.none() | st.integers(0, 4), data=st.data())
def test_two_tables_are_joined_when_one_changes(
    outer: Literal["", "left", "right", "both"], events: list[Event], crash_at: int, lag: int | None, data: Any
) -> None:
    topology, orders, prices = shop()
    orders.join_tables("joined", prices, both, Both, outer=outer)
    harness = run(topology, events, crash_at, lag)
    expected, last = changes(events, outer)
    assert [(one.value, one.timestamp - BEGIN) for one in harness.produced("joined")] == expected
    _, other_last = changes(data.draw(st.permutations(events)), outer)
    assert other_last == last, "the last result of a key does not depend on the order"


@pytest.mark.guarantee("G13")
def test_each_side_of_two_tables_is_forgotten() -> None:
    topology, orders, prices = shop()
    orders.join_tables("joined", prices, both, Both, outer="both", keep=mw.Duration(10))
    harness = TopologyHarness(topology)
    harness.send("orders", Order(1, 1), timestamp=at(0))
    harness.send("prices", Price(1, 2), timestamp=at(5))
    harness.advance(at(10))
    harness.crash()
    harness.send("prices", Price(1, 3), timestamp=at(10))
    assert harness.values("joined") == [Both(1), Both(1, 2), Both(-1, 3)]
    harness.advance(at(20))
    assert (harness.state("joined", 1), harness.timers("joined", 1)) == (None, {})


@pytest.mark.guarantee("G13")
def test_a_table_forgets_what_is_old() -> None:
    topology, orders, prices = shop()
    orders.join_latest("joined", prices, pair, Pair, keep=mw.Duration(10))
    prices.latest("latest", keep=mw.Duration(10))
    harness = TopologyHarness(topology)
    harness.send("prices", Price(1, 1), timestamp=at(0))
    harness.advance(at(9))
    harness.send("orders", Order(1, 1), timestamp=at(9))
    harness.send("prices", Price(1, 2), timestamp=at(5))
    harness.advance(at(18))
    harness.send("orders", Order(1, 2), timestamp=at(18))
    harness.crash()
    harness.advance(at(19))  # a late price is kept after the watermark of its arrival
    harness.send("orders", Order(1, 3), timestamp=at(19))
    assert harness.values("joined") == [Pair(1, 1), Pair(2, 2)]
    assert harness.values("latest") == [Price(1, 1), Price(1, 2)]
    for computation in ("joined", "latest"):
        assert harness.state(computation, 1) is None
        assert harness.timers(computation, 1) == {}


def test_a_removed_row_has_no_timer() -> None:
    topology, orders, prices = shop()
    orders.join_latest("joined", prices, pair, Pair, keep=mw.Duration(10), removes=lambda price: price.number == 0)
    harness = run(topology, [(0, Price(1, 1)), (1, Price(1, 0))], -1)
    assert (harness.state("joined", 1), harness.timers("joined", 1)) == (None, {})


def test_a_time_to_keep_is_positive() -> None:
    _, orders, prices = shop()
    with pytest.raises(mw.UsageError, match=r"keep must be a positive duration .*, not 0"):
        orders.join_latest("joined", prices, pair, Pair, keep=mw.Duration(0))
    with pytest.raises(mw.UsageError, match=r"keep must be a positive duration .*, not 0"):
        orders.join_tables("joined", prices, pair, Pair, keep=mw.Duration(0))
    with pytest.raises(mw.UsageError, match=r"keep must be a positive duration .*, not -1"):
        orders.join("joined", prices, pair, Pair, keep=mw.Duration(-1))
    with pytest.raises(mw.UsageError, match=r"keep must be a positive duration .*, not -1"):
        prices.latest("latest", keep=mw.Duration(-1))
