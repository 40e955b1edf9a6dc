"""Groups of several streams against loops over the records of each window, in any order of arrival (G1, G7)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import windows
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000
SIZE = 4
NAMES = ("orders", "payments", "refunds")


class Event(msgspec.Struct, frozen=True):
    key: int
    number: int


class Group(msgspec.Struct, frozen=True, order=True):
    """The numbers of each stream."""

    numbers: list[list[int]]


Sent = tuple[int, str, Event]
events_of = st.lists(
    st.builds(
        lambda at, name, key, number: (at, name, Event(key, number)),
        st.integers(0, 11),
        st.sampled_from(NAMES),
        st.integers(0, 2),
        st.integers(0, 9),
    ),
    max_size=14,
)


def numbers(*groups: list[Event]) -> list[Group]:
    """One result for each window, and a second one where all streams have records."""
    group = Group([[event.number for event in events] for events in groups])
    return [group, group] if all(groups) else [group]


def three(one: list[Event], two: list[Event], last: list[Event]) -> list[Group]:
    return numbers(one, two, last)


def two(one: list[Event], other: list[Event]) -> list[Group]:
    return numbers(one, other)


def at(offset: int) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + offset)


@pytest.mark.guarantee("G1", section="4.5")
@pytest.mark.parametrize("streams", [2, 3])
@given(events=events_of, every=st.integers(1, SIZE), crash_at=st.integers(0, 14), lag=st.none() | st.integers(0, 4))
def test_a_group_has_all_records_of_a_key_and_window(
    streams: int, events: list[Sent], every: int, crash_at: int, lag: int | None
) -> None:
    names = NAMES[:streams]
    events = [one for one in events if one[1] in names]
    topology = mw.Topology("shop")
    first, *others = (topology.source(name, Event).key_by("key") for name in names)
    windowed = first.window(windows.sliding(mw.Duration(SIZE), mw.Duration(every)))
    if streams == 2:
        windowed.cogroup("groups", others[0], two)
    else:
        windowed.cogroup("groups", (others[0], others[1]), three)
    harness = TopologyHarness(topology, split_at=["1"])
    for number, (time, name, event) in enumerate(events):
        if number == crash_at:
            harness.crash()
        harness.send(name, event, timestamp=at(time))
        if lag is not None:  # nothing is late
            harness.advance(at(min([time - lag, *(later for later, _, _ in events[number + 1 :])])))
    harness.advance(at(1_000))
    found = sorted((one.timestamp - BEGIN, one.value) for one in harness.produced("groups"))
    assert found == sorted(expected(events, names, every))
    assert all(harness.state("groups", key) is None for key in range(3))


def expected(events: list[Sent], names: tuple[str, ...], every: int) -> list[tuple[int, Group]]:
    """What a loop over all windows and keys gives."""
    results = []
    for end in range(-20, 20):
        inside = [one for one in events if end - SIZE <= one[0] < end and (BEGIN + end - SIZE) % every == 0]
        for key in {event.key for _, _, event in inside}:
            mine = [[event for _, name, event in inside if name == each and event.key == key] for each in names]
            results += [
                (end, group) for group in numbers(*(sorted(one, key=lambda event: event.number) for one in mine))
            ]
    return results


def test_a_stream_of_several_kinds_is_grouped_with_itself() -> None:
    topology = mw.Topology("shop")
    events = topology.source("events", Event)
    low, high = events.split(lambda event: event.number < 5)
    low.key_by("key").window(windows.tumbling(mw.Duration(10))).cogroup("groups", high.key_by("key"), two)
    harness = TopologyHarness(topology)
    for number in (1, 7, 2):
        harness.send("events", Event(0, number), timestamp=mw.Timestamp(BEGIN))
    harness.finish()
    assert harness.values("groups") == [Group([[1, 2], [7]])] * 2


def test_wrong_groups_are_refused() -> None:
    topology = mw.Topology("shop")
    orders, payments = (topology.source(name, Event).key_by("key") for name in NAMES[:2])
    tumbling = windows.tumbling(mw.Duration(10))
    with pytest.raises(mw.UsageError, match="sessions have bounds of their own on each side"):
        orders.window(windows.session(mw.Duration(10))).cogroup("groups", payments, two)
    with pytest.raises(mw.UsageError, match="to return the list of its results"):
        orders.window(tumbling).cogroup("groups", payments, lambda one, other: [len(one)])
    other = mw.Topology("other").source("payments", Event).key_by("key")
    with pytest.raises(mw.UsageError, match="cogroup takes streams of one topology"):
        orders.window(tumbling).cogroup("groups", other, two)


def test_an_update_may_exchange_the_streams_of_a_group() -> None:
    """Open windows keep their records by the streams' names, not by their positions."""

    def build(names: list[str]) -> mw.Topology:
        topology = mw.Topology("shop")
        first, *others = (topology.source(name, Event).key_by("key") for name in names)

        def show(*groups: list[Event]) -> list[str]:
            return [f"{name}: {event.number}" for name, group in zip(names, groups, strict=True) for event in group]

        first.window(windows.tumbling(mw.Duration(10))).cogroup("groups", others, show, str)
        return topology

    harness = TopologyHarness(build(["orders", "payments", "refunds"]))
    for number, name in enumerate(NAMES):
        harness.send(name, Event(1, number), timestamp=at(1))
    harness.update(build(["refunds", "orders", "payments"]))
    harness.finish()
    assert harness.values("groups") == ["refunds: 2", "orders: 0", "payments: 1"]


def test_both_lists_of_one_stream_are_kept() -> None:
    topology = mw.Topology("shop")
    orders = topology.source("orders", Event).key_by("key")
    orders.window(windows.tumbling(mw.Duration(10))).cogroup("groups", orders, two)
    harness = TopologyHarness(topology)
    harness.send("orders", Event(1, 5), timestamp=at(1))
    harness.crash()
    harness.finish()
    assert harness.values("groups") == [Group([[5], [5]])] * 2


class Offer(msgspec.Struct):
    key: int
    price: int = 0


def priced(offer: Offer, event: Event) -> Offer:
    offer.price = event.number
    return offer


def test_a_window_joins_function_may_change_its_argument() -> None:
    topology = mw.Topology("shop")
    offers = topology.source("offers", Offer).key_by("key")
    events = topology.source("events", Event).key_by("key")
    offers.window(windows.tumbling(mw.Duration(10))).join("priced", events, priced)
    harness = TopologyHarness(topology)
    harness.send("offers", Offer(0), timestamp=mw.Timestamp(BEGIN))
    for number in (10, 20):
        harness.send("events", Event(0, number), timestamp=mw.Timestamp(BEGIN))
    harness.finish()
    assert [offer.price for offer in harness.values("priced")] == [10, 20]
