"""What each record changes: retractions of the records before, against a loop over all records (G1, G13, G15)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import millwheel as mw
from millwheel import agg, windows
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000
HOUR = mw.hours(1)


class Order(msgspec.Struct):
    id: int
    city: str


class City(msgspec.Struct, frozen=True):
    city: str
    orders: int
    ids: int


def at(offset: int) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + offset)


def duration(keep: int | None) -> mw.Duration | None:
    return None if keep is None else mw.Duration(keep)


Step = tuple[int, int, str, int]
steps_of = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 1), st.sampled_from("xyz"), st.integers(0, 3)), max_size=16
)
"""For each record: its time, its key, its city, and how far the watermark moves then."""


@pytest.mark.guarantee("G1", section="4.4")
@given(steps=steps_of, keep=st.none() | st.integers(1, 6), crash_at=st.integers(0, 16))
def test_a_record_takes_back_the_one_before(steps: list[Step], keep: int | None, crash_at: int) -> None:
    topology = mw.Topology("shop")
    topology.source("orders", Order).key_by("id").changes("changes", keep=duration(keep))
    harness, watermark = TopologyHarness(topology, split_at=["1"]), 0
    known: dict[int, tuple[int, int, str]] = {}
    expected = []
    for number, (time, key, city, moves) in enumerate(steps):
        if number == crash_at:
            harness.crash()
        harness.send("orders", Order(key, city), timestamp=at(time))
        ends, newest, former = known.get(key, (0, 0, ""))
        if former != city:
            expected += [(Order(key, former), -1, at(time))] * bool(former) + [(Order(key, city), 1, at(time))]
        if former != city or keep is not None:
            newest = max(newest, time)
            known[key] = max(ends, max(newest, watermark) + (keep or 0)), newest, city
        watermark += moves
        harness.advance(at(watermark))
        known = {key: one for key, one in known.items() if keep is None or one[0] > watermark}
        for each in range(2):
            state = [(at(known[each][1]), Order(each, known[each][2]))] if each in known else None
            assert harness.state("changes", each) == state
            assert len(harness.timers("changes", each)) == (each in known and keep is not None)
    found = [(one.value.value, one.value.weight, one.timestamp) for one in harness.produced("changes")]
    assert found == expected


@pytest.mark.guarantee("G15", section="4.1")
@given(steps=steps_of, crash_at=st.integers(0, 16), data=st.data())
def test_sums_of_changes_are_those_of_the_newest(steps: list[Step], crash_at: int, data: Any) -> None:
    """The records come in any order, and the next step has another key. No sum is below zero where both keys agree."""
    topology = mw.Topology("shop")
    changes = topology.source("orders", Order).key_by("id").latest("newest").key_by("id").changes("changes")
    ids = agg.sum(lambda change: change.weight * change.value.id)
    changes.key_by("value.city").aggregate("cities", City, orders=agg.sum("weight"), ids=ids)
    changes.key_by("value.id").aggregate("ids", n=agg.sum("weight"))
    orders = [(Order(key, city), at(number)) for number, (_, key, city, _) in enumerate(steps)]
    harness = TopologyHarness(topology, split_at=["1", "y"])
    for number, (order, time) in enumerate(data.draw(st.permutations(orders))):
        if number == crash_at:
            harness.crash()
        harness.send("orders", order, timestamp=time)
    newest = {order.id: order for order, _ in orders}
    counts = Counter(order.city for order in newest.values())
    totals: Counter[str] = Counter()
    for order in newest.values():
        totals[order.city] += order.id
    last = {city.city: city for city in harness.values("cities")}
    assert {city for city in last.values() if city.orders} == {City(one, counts[one], totals[one]) for one in counts}
    assert all(city.ids == 0 for city in last.values() if not city.orders)
    assert {one.n for one in harness.values("ids")} <= {0, 1}


def test_a_window_has_what_changed_in_its_time() -> None:
    topology = mw.Topology("shop")
    changes = topology.source("orders", Order).key_by("id").changes("changes")
    changes.key_by("value.city").window(windows.tumbling(HOUR)).aggregate("hours", agg.sum("weight"))
    harness = TopologyHarness(topology)
    begin = BEGIN - BEGIN % HOUR
    for hour, city in ((0, "x"), (1, "y"), (2, "y")):
        harness.send("orders", Order(1, city), timestamp=mw.Timestamp(begin + hour * HOUR))
    harness.finish()
    found = {(one.key, (one.start - begin) // HOUR): one.value for one in harness.values("hours")}
    assert found == {("x", 0): 1, ("x", 1): -1, ("y", 1): 1}


@pytest.mark.guarantee("G13", section="4.6")
def test_a_forgotten_key_is_not_taken_back() -> None:
    topology = mw.Topology("shop")
    topology.source("orders", Order).key_by("id").changes("changes", keep=mw.Duration(10))
    harness = TopologyHarness(topology)
    for time, city in ((0, "x"), (9, "x"), (5, "y"), (19, "z")):
        harness.advance(at(time))
        harness.send("orders", Order(1, city), timestamp=at(time))
    found = [(change.value.city, change.weight) for change in harness.values("changes")]
    assert found == [("x", 1), ("x", -1), ("y", 1), ("z", 1)]
    harness.advance(at(29))
    assert (harness.state("changes", 1), harness.timers("changes", 1)) == (None, {})


@pytest.mark.guarantee("G13", section="4.6")
def test_changes_are_kept_for_a_time_after_an_update() -> None:
    """What was known for ever is known until its next record, which needs not differ, is old."""

    def program(keep: int | None) -> mw.Topology:
        topology = mw.Topology("shop")
        topology.source("orders", Order).key_by("id").changes("changes", keep=duration(keep))
        return topology

    harness = TopologyHarness(program(None))
    harness.send("orders", Order(1, "x"), timestamp=at(0))
    harness.update(program(10))
    harness.advance(at(20))
    assert harness.state("changes", 1) == [(at(0), Order(1, "x"))]
    harness.send("orders", Order(1, "x"), timestamp=at(20))
    harness.advance(at(29))
    assert harness.state("changes", 1) == [(at(20), Order(1, "x"))]
    harness.advance(at(30))
    assert harness.state("changes", 1) is None
    assert [change.weight for change in harness.values("changes")] == [1]


@given(steps=steps_of, keep=st.none() | st.integers(1, 6), data=st.data())
def test_changes_in_order_do_not_depend_on_arrival(steps: list[Step], keep: int | None, data: Any) -> None:
    orders = [(Order(key, city), at(time)) for time, key, city, _ in steps]
    results = []
    for arrived in (orders, data.draw(st.permutations(orders))):
        topology = mw.Topology("shop")
        in_order = topology.source("orders", Order).key_by("id").ordered_by_time("city")
        in_order.changes("changes", keep=duration(keep))
        harness = TopologyHarness(topology)
        for order, time in arrived:
            harness.send("orders", order, timestamp=time)
        harness.finish()
        results.append([[one for one in harness.values("changes") if one.value.id == key] for key in range(2)])
    assert results[0] == results[1]


def test_equal_records_are_those_of_one_encoding() -> None:
    """For arrays == has no answer, and not a number differs from itself."""
    topology = mw.Topology("sensors")
    topology.source("arrays", NDArray[np.float64]).key_by(mw.everything).changes("arrays-changed")
    topology.source("numbers", float).key_by(mw.everything).changes("numbers-changed")
    harness = TopologyHarness(topology)
    for number in (1.0, 1.0, float("nan"), float("nan"), 2.0):
        harness.send("arrays", np.array([number, 0.0]), timestamp=at(0))
        harness.send("numbers", number, timestamp=at(0))
    for name in ("arrays-changed", "numbers-changed"):
        assert [change.weight for change in harness.values(name)] == [1, -1, 1, -1, 1]


def test_a_change_of_a_value_changes_no_state() -> None:
    """A function may change its argument, and the state has the same value."""

    def moved(change: mw.Change[Order]) -> str:
        change.value.city += "!"
        return change.value.city

    topology = mw.Topology("shop")
    topology.source("orders", Order).key_by("id").changes("changes").map(moved).named("moved")
    harness = TopologyHarness(topology)
    for city in ("x", "y"):
        harness.send("orders", Order(1, city), timestamp=at(0))
    assert harness.values("moved") == ["x!", "x!", "y!"]
    assert harness.values("changes") == [
        mw.Change(Order(1, city), weight) for city, weight in (("x", 1), ("x", -1), ("y", 1))
    ]
    assert harness.state("changes", 1) == [(at(0), Order(1, "y"))]


def test_a_wrong_field_of_a_change_is_refused() -> None:
    changes = mw.Topology("shop").source("orders", Order).key_by("id").changes("changes")
    with pytest.raises(mw.UsageError, match=r"reads 'value\.cents', but Order has no field 'cents'"):
        changes.key_by("value.city").aggregate("cities", cents=agg.sum("value.cents"))
    with pytest.raises(mw.UsageError, match=r"Change\[Order\] has no field 'city'"):
        changes.key_by("city").aggregate("towns", n=agg.sum("weight"))


def test_a_time_to_keep_changes_is_positive() -> None:
    orders = mw.Topology("shop").source("orders", Order).key_by("id")
    with pytest.raises(mw.UsageError, match=r"keep must be a positive duration .*, not 0"):
        orders.changes("changes", keep=mw.Duration(0))
