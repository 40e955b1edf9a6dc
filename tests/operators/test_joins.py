"""Joins compute what a loop over all pairs computes, in any order of arrival, through splits and crashes (G1, G7)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import windows
from millwheel.operators.joins import Waiting
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000
US = mw.Duration(1)


class Order(msgspec.Struct, frozen=True, tag=True):
    id: int
    number: int


class Payment(msgspec.Struct, frozen=True, tag=True):
    order: int
    number: int


class Pair(msgspec.Struct, frozen=True, order=True):
    order: int = -1
    payment: int = -1


def pair(order: Order | None, payment: Payment | None) -> Pair:
    return Pair(order.number if order else -1, payment.number if payment else -1)


Event = tuple[int, Order | Payment]
events_of = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.booleans()), max_size=12).map(
    lambda given: [
        (at, Order(key, number) if left else Payment(key, number)) for number, (at, key, left) in enumerate(given)
    ]
)


def timestamp(at: int) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + at)


def joined(topology: mw.Topology, events: list[Event], crash_at: int, lag: int | None) -> list[tuple[Pair, int]]:
    """The results of the events in their order. ``lag``: how far the watermark is behind, if it moves on the way."""
    harness = TopologyHarness(topology, split_at=["1"])
    for number, (at, event) in enumerate(events):
        if number == crash_at:
            harness.crash()
        harness.send("orders" if isinstance(event, Order) else "payments", event, timestamp=timestamp(at))
        rest = [time for time, _ in events[number + 1 :]]
        if lag is not None:  # nothing is late
            harness.advance(timestamp(min([at - lag, *rest])))
    harness.advance(timestamp(1_000))
    return sorted((one.value, one.timestamp - BEGIN) for one in harness.produced("joined"))


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("outer", ["", "left", "right", "both"])
@given(
    events=events_of,
    before=st.integers(-2, 4),
    span=st.integers(0, 5),
    crash_at=st.integers(0, 12),
    lag=st.none() | st.integers(0, 4),
)
def test_an_interval_join_is_a_loop_over_all_pairs(
    outer: Literal["", "left", "right", "both"], events: list[Event], before: int, span: int, crash_at: int, lag: Any
) -> None:
    after = span - before
    topology = mw.Topology("shop")
    orders = topology.source("orders", Order).key_by("id")
    payments = topology.source("payments", Payment).key_by("order")
    orders.join_within(
        "joined", payments, pair, Pair, before=mw.Duration(before), after=mw.Duration(after), outer=outer
    )
    left = [(at, one) for at, one in events if isinstance(one, Order)]
    right = [(at, one) for at, one in events if isinstance(one, Payment)]
    pairs = [
        (at, order, time, payment)
        for at, order in left
        for time, payment in right
        if order.id == payment.order and -before <= time - at <= after
    ]
    expected = [(pair(order, payment), max(at, time)) for at, order, time, payment in pairs]
    if outer in ("left", "both"):
        met = {order.number for _, order, _, _ in pairs}
        expected += [(pair(order, None), at) for at, order in left if order.number not in met]
    if outer in ("right", "both"):
        met = {payment.number for _, _, _, payment in pairs}
        expected += [(pair(None, payment), time) for time, payment in right if payment.number not in met]
    assert joined(topology, events, crash_at, lag) == sorted(expected)


@pytest.mark.guarantee("G14", section="4.5")
@pytest.mark.parametrize("outer", ["", "left", "right", "both"])
@given(
    shifts=st.lists(st.tuples(st.integers(-9, 3), st.integers(0, 1), st.booleans(), st.integers(0, 3)), max_size=14),
    before=st.integers(-2, 4),
    span=st.integers(0, 5),
    lateness=st.integers(0, 3),
    crash_at=st.integers(0, 14),
)
def test_a_late_record_without_an_effect_is_not_lost(
    outer: Literal["", "left", "right", "both"],
    shifts: list[tuple[int, int, bool, int]],
    before: int,
    span: int,
    lateness: int,
    crash_at: int,
) -> None:
    """It is counted as dropped. Or it is in the stream of such records."""
    after, too_late = span - before, list[Order | Payment]()
    times: Any = {"before": mw.Duration(before), "after": mw.Duration(after), "allowed_lateness": mw.Duration(lateness)}
    topology = mw.Topology("shop")
    payments = topology.source("payments", Payment).key_by("order")
    orders = topology.source("orders", Order).key_by("id")
    orders.join_within("joined", payments, pair, Pair, outer=outer, too_late="too-late", **times)
    orders.join_within("counted", payments, pair, Pair, outer=outer, **times)
    topology.stream("too-late", Order | Payment)
    harness, watermark = TopologyHarness(topology, split_at=["1"]), 0
    harness.advance(timestamp(0))
    for number, (shift, key, is_left, rise) in enumerate(shifts):
        if number == crash_at:
            harness.crash()
        at, event = watermark + shift, Order(key, number) if is_left else Payment(key, number)
        harness.send("orders" if is_left else "payments", event, timestamp(at))
        if at + max(lateness, lateness + (after if is_left else before)) < watermark:
            too_late.append(event)  # unless it has a result
        watermark += rise
        harness.advance(timestamp(watermark))
    harness.finish()
    results: list[Pair] = harness.values("joined")
    met = {number for one in results for number in (one.order, one.payment)}
    expected = sorted(one.number for one in too_late if one.number not in met)
    assert sorted(one.number for one in harness.values("too-late")) == expected
    assert sorted(harness.values("counted")) == sorted(results)
    assert harness.counts("counted")["dropped"] == len(expected)
    assert not harness.counts("joined")["dropped"]


@pytest.mark.guarantee("G1", section="4.5")
@pytest.mark.parametrize("outer", ["", "left", "right", "both"])
@given(
    shifts=st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 1), st.booleans(), st.integers(0, 3)), max_size=14),
    before=st.integers(-2, 4),
    span=st.integers(0, 5),
    crash_at=st.integers(0, 14),
)
def test_a_record_that_is_allowed_late_finds_its_partners(
    outer: Literal["", "left", "right", "both"],
    shifts: list[tuple[int, int, bool, int]],
    before: int,
    span: int,
    crash_at: int,
) -> None:
    """Records are up to four microseconds late. The watermark rises on the way."""
    topology = mw.Topology("shop")
    times: Any = {"before": mw.Duration(before), "after": mw.Duration(span - before)}
    payments = topology.source("payments", Payment).key_by("order")
    topology.source("orders", Order).key_by("id").join_within(
        "joined", payments, pair, Pair, outer=outer, allowed_lateness=mw.Duration(4), **times
    )
    harness, watermark = TopologyHarness(topology, split_at=["1"]), 0
    harness.advance(timestamp(0))
    left, right = list[tuple[int, Order]](), list[tuple[int, Payment]]()
    for number, (shift, key, is_left, rise) in enumerate(shifts):
        at = watermark + shift
        if number == crash_at:
            harness.crash()
        if is_left:
            left.append((at, Order(key, number)))
            harness.send("orders", left[-1][1], timestamp(at))
        else:
            right.append((at, Payment(key, number)))
            harness.send("payments", right[-1][1], timestamp(at))
        watermark += rise
        harness.advance(timestamp(watermark))
    harness.finish()
    pairs = [
        (order, payment)
        for at, order in left
        for time, payment in right
        if order.id == payment.order and -before <= time - at <= span - before
    ]
    expected = [pair(*one) for one in pairs]
    if outer in ("left", "both"):
        expected += [pair(order, None) for _, order in left if order not in [one for one, _ in pairs]]
    if outer in ("right", "both"):
        expected += [pair(None, payment) for _, payment in right if payment not in [one for _, one in pairs]]
    assert sorted(harness.values("joined")) == sorted(expected)
    assert [harness.state("joined", key) for key in range(2)] == [None, None], "nothing is left behind"


@pytest.mark.guarantee("G1")
@given(events=events_of, keep=st.integers(1, 5), crash_at=st.integers(0, 12), lag=st.none() | st.integers(0, 4))
def test_a_join_that_forgets_gives_the_pairs_in_its_time(
    events: list[Event], keep: int, crash_at: int, lag: Any
) -> None:
    topology = mw.Topology("shop")
    payments = topology.source("payments", Payment).key_by("order")
    topology.source("orders", Order).key_by("id").join("joined", payments, pair, Pair, keep=mw.Duration(keep))
    expected = [
        (pair(order, payment), max(at, time))
        for at, order in events
        for time, payment in events
        if isinstance(order, Order) and isinstance(payment, Payment)
        if order.id == payment.order and abs(at - time) <= keep
    ]
    assert joined(topology, events, crash_at, lag) == sorted(expected)


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("outer", [False, True])
@given(events=events_of, crash_at=st.integers(0, 12), lag=st.none() | st.integers(0, 4))
def test_a_join_as_of_a_time_takes_the_newest_value_up_to_it(
    outer: bool, events: list[Event], crash_at: int, lag: Any
) -> None:
    topology = mw.Topology("shop")
    orders = topology.source("orders", Order).key_by("id")
    payments = topology.source("payments", Payment).key_by("order")
    orders.join_as_of("joined", payments, pair, Pair, outer=outer)
    expected = []
    for at, order in events:
        if isinstance(order, Order):
            held = [
                (time, msgspec.msgpack.encode(one), one)
                for time, one in events
                if isinstance(one, Payment) and one.order == order.id and time <= at
            ]
            if held or outer:
                expected.append((pair(order, max(held, key=lambda one: one[:2])[2] if held else None), at))
    assert joined(topology, events, crash_at, lag) == sorted(expected)


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("outer", ["", "left", "right", "both"])
@given(events=events_of, every=st.integers(1, 4), crash_at=st.integers(0, 12), lag=st.none() | st.integers(0, 4))
def test_a_window_join_is_a_loop_over_the_pairs_of_each_window(
    outer: Literal["", "left", "right", "both"], events: list[Event], every: int, crash_at: int, lag: Any
) -> None:
    topology = mw.Topology("shop")
    orders = topology.source("orders", Order).key_by("id").window(windows.sliding(mw.Duration(4), mw.Duration(every)))
    orders.join("joined", topology.source("payments", Payment).key_by("order"), pair, Pair, outer=outer)
    expected = []
    for end in range(-20, 20):
        if (BEGIN + end - 4) % every:
            continue
        for key in range(3):
            inside = [one for at, one in events if end - 4 <= at < end]
            left = [one for one in inside if isinstance(one, Order) and one.id == key]
            right = [one for one in inside if isinstance(one, Payment) and one.order == key]
            expected += [(pair(one, other), end) for one in left for other in right]
            if outer in ("left", "both") and not right:
                expected += [(pair(one, None), end) for one in left]
            if outer in ("right", "both") and not left:
                expected += [(pair(None, one), end) for one in right]
    assert joined(topology, events, crash_at, lag) == sorted(expected)


@pytest.mark.guarantee("G1")
def test_each_record_is_kept_for_its_own_partners() -> None:
    """The timer of the first record leaves those that came soon after it, and long after it."""
    topology, second = mw.Topology("shop"), mw.seconds(1)
    orders = topology.source("orders", Order).key_by("id")
    payments = topology.source("payments", Payment).key_by("order")
    orders.join_within("joined", payments, pair, Pair, before=mw.Duration(0), after=mw.seconds(5))
    harness = TopologyHarness(topology)
    for number, at in enumerate([0, 300_000, 3 * second]):
        harness.send("orders", Order(1, number), timestamp=timestamp(at))
    harness.advance(timestamp(5 * second + 2))
    for number, at in enumerate([5 * second + 200_000, 8 * second]):
        harness.send("payments", Payment(1, number), timestamp=timestamp(at))
    assert harness.values("joined") == [Pair(1, 0), Pair(2, 0), Pair(2, 1)]


@pytest.mark.guarantee("G13")
def test_a_join_keeps_nothing_that_can_find_no_partner() -> None:
    topology = mw.Topology("shop")
    orders = topology.source("orders", Order).key_by("id")
    orders.join_within("joined", topology.source("payments", Payment).key_by("order"), pair, Pair, after=US)
    harness = TopologyHarness(topology)
    for number in range(100):
        harness.send("orders", Order(1, number), timestamp=timestamp(number))
        harness.send("payments", Payment(1, number), timestamp=timestamp(number))
        harness.advance(timestamp(number))
        assert len(harness.state("joined", 1).left) <= 3
    harness.advance(timestamp(1_000))
    assert harness.state("joined", 1) is None or harness.state("joined", 1).left == []
    assert len(harness.values("joined")) == 199


class Former(msgspec.Struct, array_like=True):
    """The state of an earlier build: (timestamp, value, whether it has found a partner) of each record."""

    left: list[tuple[int, Any, bool]] = msgspec.field(default_factory=list)
    right: list[tuple[int, Any, bool]] = msgspec.field(default_factory=list)


@pytest.mark.parametrize("sides", [((1, 5, False), ()), ((), (1, 5, False)), ((1, 5, False), (2, 6, True))])
def test_a_state_of_the_form_before_is_refused_and_not_misread(sides: tuple[Any, Any]) -> None:
    """Neither form reads the other one (G1)."""
    former = Former(*[[one] if one else [] for one in sides])
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(former), type=Waiting[Any, Any])
    state = Waiting[int, int]()
    for left, side in zip((True, False), sides, strict=True):
        columns: tuple[list[Any], ...] = state.side(left)
        for column, part in zip(columns, side, strict=False):
            column.append(part)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=Former)


def test_a_stream_is_joined_with_itself() -> None:
    topology = mw.Topology("shop")
    orders = topology.source("orders", Order)
    first, second = orders.filter(lambda order: order.number < 2), orders.filter(lambda order: order.number >= 1)
    first.key_by("id").join_within(
        "joined", second.key_by("id"), lambda a, b: Pair(a.number, b.number), Pair, before=US, after=US
    )
    events: list[Event] = [(0, Order(1, 0)), (1, Order(1, 1)), (2, Order(1, 2)), (1, Order(2, 2))]
    found = [one for one, _ in joined(topology, events, 99, None)]
    assert found == [Pair(0, 1), Pair(1, 1), Pair(1, 2)]


def test_wrong_joins_are_refused() -> None:
    topology = mw.Topology("shop")
    orders = topology.source("orders", Order).key_by("id")
    with pytest.raises(mw.UsageError, match="no time is from -2 microseconds before a record to 1"):
        orders.join_within("joined", orders, lambda one, other: Pair(), Pair, before=mw.Duration(-2), after=US)
    with pytest.raises(mw.UsageError, match="sessions have bounds of their own on each side"):
        orders.window(windows.session(US)).join("joined", orders, lambda one, other: Pair(), Pair)
    other = mw.Topology("other").source("payments", Payment).key_by("order")
    with pytest.raises(mw.UsageError, match="a join takes two streams of one topology"):
        orders.join_as_of("joined", other, pair, Pair)
