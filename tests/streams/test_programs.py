"""Programs of steps give the results of equal hooks (sections 3, 4.2 and 4.4)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.sdk.declarations import DROPPED
from millwheel.sdk.errors import UsageError
from millwheel.streams.steps import to_one
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000
TEN = mw.seconds(10)


class Bid(msgspec.Struct, frozen=True, tag=True):
    auction: int
    price: int
    note: str = ""


class Ask(msgspec.Struct, frozen=True, tag=True):
    auction: int


class Total(mw.Computation[Bid, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Bid]) -> None:
        ctx.state += record.value.price
        ctx.produce("totals", ctx.state)
        if ctx.state > 100:
            ctx.produce("large", ctx.key)


def at(seconds: float) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + round(seconds * 1e6))


def run(topology: mw.Topology, values: list[Any], stream: str = "bids", **options: Any) -> TopologyHarness:
    harness = TopologyHarness(topology, **options)
    for number, value in enumerate(values):
        harness.send(stream, value, timestamp=at(number / 1_000))
    harness.advance(at(60))
    return harness


bids_of = st.lists(st.builds(Bid, st.integers(1, 4), st.integers(0, 20)), max_size=20)


@given(bids_of)
def test_filters_and_functions_run_before_windows(bids: list[Bid]) -> None:
    topology = mw.Topology("auctions")
    source = topology.source("bids", Bid)
    dear = source.filter(lambda bid: bid.price > 5).map(lambda bid: Bid(bid.auction * 2, bid.price), Bid)
    dear.key_by("auction").window(windows.tumbling(TEN)).aggregate("counts", agg.count())
    harness = run(topology, bids, split_at=["4"])
    found = {one.value.key: one.value.value for one in harness.produced("counts")}
    assert found == Counter(str(bid.auction * 2) for bid in bids if bid.price > 5)


@given(bids_of)
def test_results_are_expanded_where_they_are_produced(bids: list[Bid]) -> None:
    topology = mw.Topology("auctions")
    counts = topology.source("bids", Bid).key_by("auction").window(windows.tumbling(TEN))
    results = counts.aggregate("counts", agg.count())
    small, large = results.split(lambda result: result.value < 3)
    small.map(lambda result: result.key, str).named("small")
    large.flat_map(lambda result: [result.key] * result.value, str).named("large").filter(str.isdigit).named("digits")
    harness = run(topology, bids)
    counted = Counter(str(bid.auction) for bid in bids)
    assert sorted(harness.values("small")) == sorted(key for key, count in counted.items() if count < 3)
    assert Counter(harness.values("large")) == {key: count for key, count in counted.items() if count >= 3}
    assert Counter(harness.values("digits")) == Counter(harness.values("large"))
    assert set(topology.plan().computations) == {"counts"}


def test_what_a_source_is_expanded_into_takes_a_hop_of_its_name() -> None:
    topology = mw.Topology("words")
    lines = topology.source("lines", str)
    words = lines.flat_map(str.split, str).named("words")
    words.key_by(lambda word: word.lower()).window(windows.tumbling(TEN)).aggregate("counts", agg.count())
    harness = run(topology, ["to be or", "not To be", ""], "lines", split_at=["5"])
    assert {one.key: one.value for one in harness.values("counts")} == {"to": 2, "be": 2, "or": 1, "not": 1}
    assert set(topology.plan().computations) == {"words", "counts"}


def test_a_union_may_read_a_stream_twice_under_one_key() -> None:
    topology = mw.Topology("auctions")
    bids = topology.source("bids", Bid)
    cheap, dear = bids.split(lambda bid: bid.price < 5)
    both = cheap.union(dear, bids.filter(lambda bid: bid.price == 7))
    both.key_by("auction").process("total", Total, {"totals": int, "large": str})
    harness = run(topology, [Bid(1, 3), Bid(1, 7), Bid(2, 9)])
    assert (harness.state("total", 1), harness.state("total", 2)) == (17, 9)


def test_a_users_computation_stands_among_the_steps() -> None:
    topology = mw.Topology("auctions")
    bids = topology.source("bids", Bid).filter(lambda bid: bid.note != "void")
    totals: mw.Stream[int] = bids.key_by(lambda bid: bid.auction).process(
        "total", Total(), {"totals": int, "large": str}
    )
    totals.filter(lambda total: total > 90).named("near")
    harness = run(topology, [Bid(1, 80), Bid(1, 80, "void"), Bid(1, 15), Bid(1, 50)])
    assert harness.values("totals") == [80, 95, 145]
    assert harness.values("near") == [95, 145]
    assert harness.values("large") == ["1"]


class Slow(mw.Computation[Bid, list[int]]):
    async def process_record(self, ctx: mw.Context[list[int]], record: mw.Record[Bid]) -> None:
        ctx.state.append(record.value.price)


def test_an_asynchronous_hook_reads_through_filters() -> None:
    topology = mw.Topology("auctions")
    bids = topology.source("bids", Bid)
    low, high = bids.split(lambda bid: bid.price < 5)
    high.key_by("auction").process("one", Slow, {})
    low.union(bids).key_by("auction").process("two", Slow, {})
    harness = run(topology, [Bid(1, 3), Bid(1, 7)])
    assert harness.state("one", 1) == [7]
    assert harness.state("two", 1) == [3, 3, 7]
    harness.close()


def test_streams_of_several_kinds_are_read_by_kind() -> None:
    topology = mw.Topology("auctions")
    events = topology.source("events", Bid | Ask)
    events.only(Bid).key_by("auction").process("total", Total, {"totals": int, "large": str})
    harness = run(topology, [Bid(1, 3)], "events")
    assert harness.values("totals") == [3]


def test_a_function_that_raises_fails_the_hook_that_reads() -> None:
    topology = mw.Topology("auctions")
    bids = topology.source("bids", Bid).filter(lambda bid: 1 // bid.price > 0)
    bids.key_by("auction").process("total", Total, {"totals": int, "large": str}, on_failure=mw.dead_letter())
    harness = run(topology, [Bid(1, 0), Bid(2, 1)])
    assert harness.values("totals") == [1]
    assert "ZeroDivisionError" in harness.failures[0]


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda bids: bids.flat_map(lambda bid: [bid], Bid).key_by("auction"), "flat_map makes several values"),
        (lambda bids: bids.union(bids.map(lambda bid: bid, Bid)).key_by("auction"), "read twice with different keys"),
        (lambda bids: bids.key_by("auctoin"), "Bid has no field 'auctoin'"),
        (lambda bids: bids.map(lambda bid: Ask(bid.auction), Ask).key_by("auction"), "it takes Bid, but"),
    ],
)
def test_mistakes_are_problems_of_the_step(build: Any, problem: str) -> None:
    topology = mw.Topology("auctions")
    keyed = build(topology.source("bids", Bid))
    keyed.process("total", Total, {"totals": int, "large": str})
    (found,) = topology.validate()
    assert found.where.startswith("computation 'total', input 'bids'")
    assert problem in found.message


def test_a_union_of_two_topologies_is_refused() -> None:
    one, two = mw.Topology("one").source("a", Bid), mw.Topology("two").source("b", Bid)
    with pytest.raises(mw.UsageError, match="a topology reads another one's stream by external"):
        one.union(two)


def test_kinds_of_one_stream_have_keys_of_their_own() -> None:
    topology = mw.Topology("auctions")
    events = topology.source("events", Bid | Ask)
    bids, asks = events.only(Bid).key_by("note"), events.only(Ask).key_by(lambda ask: str(ask.auction))
    bids.join("both", asks, lambda bid, ask: [bid.price, ask.auction], list[int])
    harness = run(topology, [Bid(1, 3, "7"), Ask(7), Ask(1), Bid(7, 4, "1")], "events", split_at=["5"])
    assert sorted(harness.values("both")) == [[3, 7], [4, 1]]


@given(bids_of)
def test_a_sample_takes_equal_values_together(bids: list[Bid]) -> None:
    topology = mw.Topology("auctions")
    source = topology.source("bids", Bid)
    source.sample(0.5, "auction").named("some")
    rest = source.sample(1.0).filter(lambda bid: bid.price > 0)
    rest.sample(0.5, lambda bid: bid.price, seed=3).named("prices")
    source.sample(0).named("none")
    harness = run(topology, bids)
    some, prices = harness.values("some"), harness.values("prices")
    assert some == [bid for bid in bids if bid.auction in {one.auction for one in some}]
    assert prices == [bid for bid in bids if bid.price in {one.price for one in prices}]
    assert harness.values("none") == []


def test_a_sample_has_its_share() -> None:
    def share(stream: mw.Stream[int]) -> float:
        kept = to_one(stream.branches[0].steps)
        return sum(kept(value) is not DROPPED for value in range(10_000)) / 10_000

    numbers = mw.Topology("numbers").source("numbers", int)
    assert share(numbers.sample(0.1)) == pytest.approx(0.1, abs=0.01)
    assert share(numbers.sample(0.5, lambda value: f"{value}")) == pytest.approx(0.5, abs=0.02)
    assert share(numbers.sample(0.5).sample(0.5)) == share(numbers.sample(0.5)), "the same hash"
    assert share(numbers.sample(0.5).sample(0.5, seed=1)) == pytest.approx(0.25, abs=0.02)
    assert share(numbers.sample(1)) == 1
    with pytest.raises(mw.UsageError, match="a share from 0 to 1, not 10"):
        numbers.sample(10)


def test_a_sample_is_the_same_in_each_process() -> None:
    numbers = to_one(mw.Topology("numbers").source("numbers", int).sample(0.2).branches[0].steps)
    assert [value for value in range(30) if numbers(value) is not DROPPED] == [1, 5, 18, 23]


def test_without_a_time_a_first_record_is_remembered_for_ever() -> None:
    topology = mw.Topology("shop")
    topology.source("customers", str).key_by(lambda name: name).deduplicate("new")
    harness = TopologyHarness(topology)
    for second, name in [(0, "Ann"), (1, "Bob")]:
        harness.send("customers", name, timestamp=at(second))
    assert harness.timers("new", "Ann") == {}
    harness.advance(at(10**8))
    harness.crash()
    for name in ("Ann", "Eve"):
        harness.send("customers", name, timestamp=at(10**8 + 1))
    assert harness.values("new") == ["Ann", "Bob", "Eve"]


@pytest.mark.parametrize("outer", ["full", "outer", True])
def test_an_outer_join_of_another_kind_is_refused(outer: Any) -> None:
    topology = mw.Topology("joins")
    left, right = (topology.source(name, str).key_by(mw.everything) for name in ("left", "right"))
    with pytest.raises(UsageError, match='outer= takes "left", "right" or "both"'):
        left.join_within("pairs", right, lambda one, other: f"{one}{other}", str, after=mw.hours(1), outer=outer)
    with pytest.raises(UsageError, match='outer= takes "left", "right" or "both"'):
        left.window(windows.tumbling(mw.hours(1))).join("pairs", right, lambda one, _: str(one), str, outer=outer)


def test_early_results_need_a_window() -> None:
    bids = mw.Topology("bids").source("bids", str).key_by(mw.everything)
    with pytest.raises(UsageError, match="results before the end need a window"):
        bids.aggregate("n", n=agg.count(), early=windows.each_change())  # type: ignore[call-overload]
