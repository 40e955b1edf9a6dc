"""Complete groups, running aggregates and dropped copies, against loops over all records (G1, G7)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000
TEN = windows.tumbling(mw.Duration(10))


class Bid(msgspec.Struct, frozen=True):
    auction: int
    price: int


class Auction(msgspec.Struct, frozen=True, order=True):
    auction: int
    bids: int
    highest: int


def run(topology: mw.Topology, bids: list[tuple[int, Bid]], crash_at: int = -1) -> TopologyHarness:
    harness = TopologyHarness(topology, split_at=["2"])
    for number, (at, bid) in enumerate(bids):
        if number == crash_at:
            harness.crash()
        harness.send("bids", bid, timestamp=mw.Timestamp(BEGIN + at))
    harness.advance(mw.Timestamp(BEGIN + 1_000))
    return harness


bids_of = st.lists(
    st.tuples(st.integers(0, 29), st.builds(Bid, st.integers(1, 3), st.integers(0, 9))), min_size=1, max_size=15
)


@pytest.mark.guarantee("G7")
@given(bids=bids_of, crash_at=st.integers(-1, 14))
def test_the_results_of_all_keys_of_a_window_are_complete(bids: list[tuple[int, Bid]], crash_at: int) -> None:
    topology = mw.Topology("auctions")
    counts = topology.source("bids", Bid).key_by("auction").window(TEN).aggregate("counts", agg.count())
    hot = counts.key_by("start").complete("hot", lambda group: [max((one.value, one.key) for one in group)], tuple)
    hot.named("winners")
    harness = run(topology, bids, crash_at)
    expected = []
    for start in {at // 10 for at, _ in bids}:
        counted = Counter(str(bid.auction) for at, bid in bids if at // 10 == start)
        expected.append((max((count, key) for key, count in counted.items()), start * 10 + 10))
    found = [(tuple(one.value), one.timestamp - BEGIN) for one in harness.produced("winners")]
    assert sorted(found) == sorted(expected)


@pytest.mark.guarantee("G1")
@given(bids=bids_of, crash_at=st.integers(-1, 14))
def test_a_running_aggregate_follows_its_key(bids: list[tuple[int, Bid]], crash_at: int) -> None:
    topology = mw.Topology("auctions")
    keyed = topology.source("bids", Bid).key_by("auction")
    keyed.aggregate("auctions", Auction, bids=agg.count(), highest=agg.max("price"))
    harness = run(topology, bids, crash_at)
    expected, seen = [], dict[int, list[int]]()
    for _, bid in bids:
        prices = seen.setdefault(bid.auction, [])
        prices.append(bid.price)
        expected.append(Auction(bid.auction, len(prices), max(prices)))
    assert harness.values("auctions") == expected


def test_a_running_aggregate_is_produced_when_it_changes() -> None:
    topology = mw.Topology("auctions")
    topology.source("bids", Bid).key_by("auction").aggregate("highest", price=agg.max("price"))
    harness = run(topology, [(0, Bid(1, 3)), (1, Bid(1, 2)), (2, Bid(1, 5)), (3, Bid(2, 5))])
    assert [(one.auction, one.price) for one in harness.values("highest")] == [(1, 3), (1, 5), (2, 5)]


def test_a_running_aggregate_sees_a_change_in_place() -> None:
    topology = mw.Topology("auctions")
    topology.source("bids", Bid).key_by("auction").aggregate("prices", prices=agg.histogram("price", [3]))
    harness = run(topology, [(0, Bid(1, 3)), (1, Bid(1, 2)), (2, Bid(1, 5))])
    assert [one.prices for one in harness.values("prices")] == [[0, 1], [1, 1], [1, 2]]


AGGREGATES = {
    "count": agg.count(where=lambda bid: bid.price > 2),
    "sum": agg.sum("price"),
    "mean": agg.mean("price"),
    "variance": agg.variance("price"),
    "min": agg.min("price"),
    "max_by": agg.max_by("price"),
    "first": agg.first(),
    "last": agg.last(),
    "top": agg.top(2, "price"),
    "bottom": agg.top(2, "price", smallest=True),
    "distinct": agg.distinct("price"),
    "collect": agg.collect("price"),
    "quantile": agg.quantile("price", 0.5),
}


@pytest.mark.parametrize("name", AGGREGATES)
def test_any_aggregate_is_produced_if_its_encoding_changes(name: str) -> None:
    prices = [3, 3, 0, 5, 5, 1, 9, 9, 0, 5, 2, 9]
    topology = mw.Topology("auctions")
    topology.source("bids", Bid).key_by("auction").aggregate("values", value=AGGREGATES[name])
    harness = run(topology, [(at // 2, Bid(1, price)) for at, price in enumerate(prices)], crash_at=7)
    expected: list[Any] = []
    for count in range(1, len(prices) + 1):
        one = AGGREGATES[name].bind(Bid)
        accumulator = one.new()
        for at, price in enumerate(prices[:count]):
            value = Bid(1, price)
            record = mw.Record(b"1", b"", mw.Timestamp(BEGIN + at // 2), "bids", lambda _: None, False, value)
            accumulator = one.add(accumulator, record)
        result = one.result(accumulator)
        if not expected or msgspec.msgpack.encode(result) != msgspec.msgpack.encode(expected[-1]):
            expected.append(result)
    assert [row.value for row in harness.values("values")] == expected


@pytest.mark.guarantee("G13")
def test_the_first_record_of_a_key_passes_until_it_is_forgotten() -> None:
    topology = mw.Topology("auctions")
    topology.source("bids", Bid).key_by("auction").deduplicate("firsts", mw.Duration(10))
    harness = TopologyHarness(topology)

    def send(at: int, bid: Bid, watermark: int) -> list[Any]:
        harness.send("bids", bid, timestamp=mw.Timestamp(BEGIN + at))
        harness.advance(mw.Timestamp(BEGIN + watermark))
        return [one.price for one in harness.values("firsts")]

    assert send(0, Bid(1, 1), 0) == [1]
    assert send(9, Bid(1, 2), 9) == [1]
    assert send(9, Bid(2, 3), 9) == [1, 3]
    assert send(12, Bid(1, 4), 10) == [1, 3], "it was there before the low watermark"
    assert send(12, Bid(1, 5), 100) == [1, 3, 5]
    assert harness.state("firsts", 1) is None


def test_a_time_to_remember_is_positive() -> None:
    keyed = mw.Topology("auctions").source("bids", Bid).key_by("auction")
    with pytest.raises(mw.UsageError, match=r"deduplicate\(within\) must be a positive duration"):
        keyed.deduplicate("firsts", mw.Duration(0))
    with pytest.raises(mw.UsageError, match="has no aggregate: add one"):
        keyed.aggregate("none")
