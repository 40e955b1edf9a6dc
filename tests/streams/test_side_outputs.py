"""Late records and failed ones are streams, by one word (G1, G14)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000


class Bid(msgspec.Struct, frozen=True, tag=True):
    auction: int
    price: int


class Ask(msgspec.Struct, frozen=True, tag=True):
    auction: int


def at(offset: int) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + offset)


def double(bid: Bid) -> Bid:
    return Bid(bid.auction, bid.price * 2)


@pytest.mark.guarantee("G14")
@given(
    bids=st.lists(st.tuples(st.integers(0, 9), st.builds(Bid, st.integers(0, 2), st.integers(0, 9))), max_size=12),
    crash_at=st.integers(0, 12),
)
def test_late_records_are_what_the_step_would_have_got(bids: list[tuple[int, Bid]], crash_at: int) -> None:
    topology = mw.Topology("auctions")
    source = topology.source("bids", Bid).filter(lambda bid: bid.price != 5)
    keyed = source.map(double).key_by("auction")
    keyed.aggregate("counts", count=agg.count(), options={"late": "late-counts"})
    keyed.ordered_by_time().update(
        "sums", 0, lambda total, bid: (total + bid.price, [total + bid.price]), int, late="late"
    )
    topology.stream("late", Bid).key_by("auction").update("lost", 0, lambda _, bid: (0, [bid.price]), int)
    harness = TopologyHarness(topology, split_at=["1"])
    on_time: list[Bid] = []
    late: list[Bid] = []
    watermark = 0
    for number, (time, bid) in enumerate(bids):
        if number == crash_at:
            harness.crash()
        harness.send("bids", bid, timestamp=at(time))
        if bid.price != 5:
            (late if time < watermark else on_time).append(double(bid))
        watermark = max(watermark, time)
        harness.advance(at(watermark))
    harness.finish()
    assert harness.values("late-counts") == late
    assert harness.values("lost") == [bid.price for bid in late]
    assert len(harness.values("counts")) == len(harness.values("sums")) == len(on_time)


def test_late_records_of_one_kind_are_of_this_kind() -> None:
    topology = mw.Topology("auctions")
    events = topology.source("events", Bid | Ask)
    bids = events.only(Bid).key_by("auction").window(windows.tumbling(mw.Duration(10)))
    bids.aggregate("counts", agg.count(), options={"late": "late"})
    harness = TopologyHarness(topology)
    harness.advance(at(10))
    harness.send("events", Ask(1), timestamp=at(1))
    harness.send("events", Bid(1, 1), timestamp=at(1))
    assert harness.values("late") == [Bid(1, 1)]
    assert topology.plan().streams["late"].type is Bid


def test_a_stream_of_one_kind_is_passed_on() -> None:
    topology = mw.Topology("auctions")
    events = topology.source("events", Bid | Ask)
    events.only(Bid).key_by("auction").deduplicate("firsts", mw.Duration(10))
    events.only(Bid).key_by("auction").latest("latest")
    harness = TopologyHarness(topology)
    for value in (Ask(1), Bid(1, 1), Bid(1, 2)):
        harness.send("events", value, timestamp=at(1))
    assert harness.values("firsts") == [Bid(1, 1)]
    assert harness.values("latest") == [Bid(1, 1), Bid(1, 2)]


def test_steps_get_the_type_of_what_is_passed_on() -> None:
    topology = mw.Topology("auctions")
    keyed = topology.source("bids", Bid).key_by("auction")
    newest = keyed.deduplicate("firsts", mw.Duration(10)).key_by("auction").latest("newest", late="late")
    late: mw.Stream[Bid] = topology.stream("late", Bid)
    for name, bids in (("windows", newest), ("late-windows", late)):
        windowed = bids.key_by("auction").window(windows.tumbling(mw.Duration(10)))
        windowed.aggregate(name, agg.max(lambda bid: bid.price, int))
    harness = TopologyHarness(topology)
    harness.send("bids", Bid(1, 7), timestamp=at(1))
    harness.finish()
    assert [one.value for one in harness.values("windows")] == [7]
    types = {name: one.type for name, one in topology.plan().streams.items()}
    assert (types["firsts"], types["newest"], types["late"]) == (Bid, Bid, Bid)


@pytest.mark.guarantee("G1")
def test_what_failed_is_a_stream() -> None:
    topology = mw.Topology("auctions")
    keyed = topology.source("bids", Bid).key_by("auction")
    keyed.update("shares", 0, lambda _, bid: (0, [100 // bid.price]), int, on_failure=mw.dead_letter(after=1))
    letters = topology.dead_letters().map(lambda letter: msgspec.msgpack.decode(letter.value, type=Bid), Bid)
    letters.key_by("auction").aggregate("failed", count=agg.count())
    harness = TopologyHarness(topology)
    for price in (5, 0, 10, 0):
        harness.send("bids", Bid(7, price), timestamp=at(0))
    assert harness.values("shares") == [20, 10]
    assert [(one.auction, one.count) for one in harness.values("failed")] == [(7, 1), (7, 2)]
