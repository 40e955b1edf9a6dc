"""The results of windows in a user's own type: each field is filled by its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000
TEN = mw.seconds(10)


class Bid(msgspec.Struct):
    auction: int
    bidder: str
    price: int


class Stats(msgspec.Struct):
    auction: int
    end: mw.Timestamp
    bids: int
    highest: int
    currency: str = "EUR"


@dataclass
class Pair:
    bidder: str
    auction: int
    key: str
    spent: int


BIDS = [Bid(1, "a|b", 3), Bid(1, "c", 8), Bid(2, "a|b", 5), Bid(1, "a|b", 4)]


def results(keys: tuple[str, ...], window: Any, *into: Any, **aggregates: Any) -> list[Any]:
    topology = mw.Topology("auctions")
    keyed: Any = topology.source("bids", Bid).key_by(*keys)
    keyed.window(window).aggregate("stats", *into, **aggregates)
    harness = TopologyHarness(topology)
    for number, bid in enumerate(BIDS):
        harness.send("bids", bid, timestamp=mw.Timestamp(BEGIN + number))
    harness.advance(mw.Timestamp(BEGIN + 60_000_000))
    return sorted(harness.values("stats"), key=repr)


@pytest.mark.parametrize("window", [windows.tumbling(TEN), windows.session(TEN)], ids=["tumbling", "session"])
def test_fields_are_filled_by_their_names(window: Any) -> None:
    found = results(("auction",), window, Stats, bids=agg.count(), highest=agg.max("price"))
    assert [(one.auction, one.bids, one.highest, one.currency) for one in found] == [(1, 3, 8, "EUR"), (2, 1, 5, "EUR")]
    assert {one.end % 10_000_000 for one in found} <= {0, 2, 3}


def test_the_parts_of_a_compound_key_are_fields() -> None:
    found = results(("bidder", "auction"), windows.tumbling(TEN), Pair, spent=agg.sum("price"))
    assert found == [Pair("a|b", 1, "a\\|b|1", 7), Pair("a|b", 2, "a\\|b|2", 5), Pair("c", 1, "c|1", 8)]


def test_a_row_without_a_class_has_all_fields() -> None:
    (first, second) = results(("auction",), windows.tumbling(TEN), n=agg.count(), who=agg.distinct("bidder"))
    assert msgspec.to_builtins(first) == {
        "auction": 1, "start": BEGIN, "end": BEGIN + 10_000_000, "n": 3, "who": ["a|b", "c"], "revision": 0
    }  # fmt: skip
    assert (second.auction, second.n) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "aggregates", "message"),
    [
        ((Stats,), {"bids": agg.count()}, "nothing fills the field 'highest' of Stats"),
        ((), {"auction": agg.count()}, "the aggregate 'auction' has the name of a part of the result"),
        ((), {}, "has no aggregate: add one, such as agg.count"),
        ((), {"x": agg.sum("cost")}, "Bid has no field 'cost'"),
    ],
)
def test_mistakes_are_refused_at_once(arguments: tuple[Any, ...], aggregates: dict[str, Any], message: str) -> None:
    with pytest.raises(mw.UsageError, match=message):
        results(("auction",), windows.tumbling(TEN), *arguments, **aggregates)


def test_sessions_have_no_allowed_lateness() -> None:
    windowed = mw.Topology("t").source("bids", Bid).key_by("auction").window(windows.session(TEN))
    with pytest.raises(mw.UsageError, match="session windows have no allowed_lateness"):
        windowed.aggregate("n", agg.count(), allowed_lateness=TEN)
