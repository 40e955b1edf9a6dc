"""The latest record of each key, and the join with it, against loops over all records (G1, G13)."""

from __future__ import annotations

from typing import Any

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
    with pytest.raises(mw.UsageError, match=r"keep must be a positive duration .*, not -1"):
        prices.latest("latest", keep=mw.Duration(-1))
