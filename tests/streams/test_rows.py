"""The results of windows in a user's own type: each field is filled by its name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

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


def test_several_aggregates_are_a_mapping_by_name() -> None:
    both = agg.several({"bids": agg.count(), "highest": agg.max("price")})
    found = results(("auction",), windows.tumbling(TEN), both)
    assert [one.value for one in found] == [{"bids": 3, "highest": 8}, {"bids": 1, "highest": 5}]


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
        (
            (Stats,),
            {"bids": agg.count(), "highest": agg.max("price"), "curency": agg.first()},
            r"no field 'curency' in Stats \(did you mean 'currency'\?\)",
        ),
    ],
)
def test_mistakes_are_refused_at_once(arguments: tuple[Any, ...], aggregates: dict[str, Any], message: str) -> None:
    with pytest.raises(mw.UsageError, match=message):
        results(("auction",), windows.tumbling(TEN), *arguments, **aggregates)


class Word(msgspec.Struct):
    word: str
    times: int


class Bucket(msgspec.Struct):
    bucket: int
    times: int


def length(word: str) -> int:
    return len(word)


def counts_of(into: type[Any] | None, function: Any, key_name: str) -> list[Any]:
    topology = mw.Topology("talk")
    keyed: Any = topology.source("words", str).key_by(function, name=key_name)
    keyed.aggregate("counts", *([into] if into else []), times=agg.count())
    harness = TopologyHarness(topology)
    for word in ("Tea", "tea"):
        harness.send("words", word, timestamp=mw.Timestamp(BEGIN))
    return harness.values("counts")


def test_the_key_of_a_function_has_the_name_that_it_is_given() -> None:
    assert counts_of(Word, lambda word: word.lower(), "word") == [Word("tea", 1), Word("tea", 2)]
    assert counts_of(Bucket, length, "bucket") == [Bucket(3, 1), Bucket(3, 2)]
    assert counts_of(Bucket, lambda word: len(word), "bucket") == [Bucket(3, 1), Bucket(3, 2)]
    assert [(one.size, one.times) for one in counts_of(None, length, "size")] == [(3, 1), (3, 2)]


def test_a_function_that_reads_a_field_gets_the_name_too() -> None:
    topology = mw.Topology("auctions")
    bids = topology.source("bids", Bid)
    bids.key_by(lambda bid: bid.auction, name="bucket").aggregate("counts", Bucket, times=agg.count())
    assert [str(one) for one in topology.plan().computations["counts"].inputs.values()] == ["key('auction')"]
    harness = TopologyHarness(topology)
    harness.send("bids", Bid(7, "a", 3), timestamp=mw.Timestamp(BEGIN))
    assert harness.values("counts") == [Bucket(7, 1)]


@pytest.mark.parametrize("key_name", ["key", "start", "end", "revision", "two words", "class"])
def test_a_key_is_not_called_what_results_have_otherwise(key_name: str) -> None:
    with pytest.raises(mw.UsageError, match="name= takes the name of a field that results do not have otherwise"):
        counts_of(None, length, key_name)


def test_a_key_of_fields_takes_no_name() -> None:
    keyed: Any = mw.Topology("auctions").source("bids", Bid)
    with pytest.raises(mw.UsageError, match="name='item' names the key of a function"):
        keyed.key_by("auction", name="item")


class TextAuction(msgspec.Struct):
    auction: str
    bids: int


class NumberBidder(msgspec.Struct):
    bidder: int
    bids: int


class MaybeAuction(msgspec.Struct):
    auction: float | None
    bids: int


@pytest.mark.parametrize(
    ("keys", "into", "message"),
    [
        (("auction",), TextAuction, "the field 'auction' of TextAuction is str, and this part of the key is int"),
        (("bidder",), NumberBidder, "the field 'bidder' of NumberBidder is int, and this part of the key is str"),
        (("auction", "bidder"), NumberBidder, "'bidder' of NumberBidder is int, and this part of the key is str"),
    ],
)
def test_a_field_that_does_not_fit_its_key_part_is_refused(keys: tuple[str, ...], into: type, message: str) -> None:
    with pytest.raises(mw.UsageError, match=message):
        results(keys, windows.tumbling(TEN), into, bids=agg.count())


def test_a_field_may_accept_more_than_its_part_of_the_key() -> None:
    found = results(("auction",), windows.tumbling(TEN), MaybeAuction, bids=agg.count())
    assert found == [MaybeAuction(1, 3), MaybeAuction(2, 1)]


class Ends(msgspec.Struct):
    end: mw.Timestamp
    keys: int


def test_a_key_of_a_new_type_is_a_number() -> None:
    topology = mw.Topology("auctions")
    minutes = topology.source("ends", Ends).key_by("end").aggregate("minutes", n=agg.count())
    assert next((field.name, field.type) for field in msgspec.structs.fields(minutes.record_type)) == ("end", int)


def test_sessions_are_kept_for_late_records() -> None:
    topology = mw.Topology("t")
    session = topology.source("bids", Bid).key_by("auction").window(windows.session(TEN))
    session.aggregate("n", n=agg.count(), allowed_lateness=TEN)
    harness = TopologyHarness(topology)
    for advance in (15, 25):
        harness.send("bids", BIDS[0], mw.Timestamp(BEGIN))
        harness.advance(mw.Timestamp(BEGIN + mw.seconds(advance)))
    harness.send("bids", BIDS[0], mw.Timestamp(BEGIN))
    assert [(one.n, one.revision) for one in harness.values("n")] == [(1, 0), (2, 1)]


def test_fields_may_have_any_names_and_places() -> None:
    """Generated code makes rows and accumulators. A field's name must not collide with its names."""
    into = msgspec.defstruct("Into", [("class", int), ("bidder", str), ("spent", int)], kw_only=True)
    odd = msgspec.defstruct("Odd", [("spent", int), ("bidder", str, "?"), ("class", int, 0)])
    aggregates: Any = {"class": agg.count(), "spent": agg.sum("price")}
    for kind in (into, odd):
        found = results(("auction", "bidder"), windows.tumbling(TEN), kind, **aggregates)
        counts = {(one.bidder, getattr(one, "class")) for one in found}
        assert counts == {("a|b", 2), ("c", 1), ("a|b", 1)}
    assert sorted(one.spent for one in found) == [5, 7, 8]


def test_a_key_that_is_no_field_is_named_first() -> None:
    with pytest.raises(mw.UsageError, match=r"key\('auctoin'\): Bid has no field 'auctoin'"):
        results(("auctoin",), windows.tumbling(TEN), Stats, bids=agg.count(), highest=agg.max("price"))


def high(price: int) -> float:
    return price * 2.0


@pytest.mark.parametrize(
    ("field", "aggregate"),
    [
        (int, agg.quantile("price", 0.95)),
        (int, agg.mean("price", where=lambda bid: bid.price > 3)),
        (int | None, agg.mean("price", where=lambda bid: bid.price > 3)),
        (str, agg.count()),
        (bool, agg.count()),
        (int, agg.max("bidder")),
        (int, agg.first()),
        (list[int], agg.distinct("bidder")),
        (int, agg.sum(lambda bid: high(bid.price), float)),
    ],
)
def test_a_field_that_cannot_hold_its_aggregate(field: Any, aggregate: Any) -> None:
    into = msgspec.defstruct("Into", [("auction", int), ("found", field)])
    with pytest.raises(mw.UsageError, match="the field 'found' of Into is "):
        results(("auction",), windows.tumbling(TEN), into, found=aggregate)


@pytest.mark.parametrize(("name", "field"), [("start", datetime), ("end", str), ("revision", str), ("key", int)])
def test_a_field_that_cannot_hold_its_part_of_a_result(name: str, field: Any) -> None:
    into = msgspec.defstruct("Into", [("auction", int), ("n", int), (name, field)])
    with pytest.raises(mw.UsageError, match=f"the field '{name}' of Into is {field.__name__}, and a result has"):
        results(("auction",), windows.tumbling(TEN), into, n=agg.count())


@pytest.mark.parametrize(
    ("field", "aggregate"),
    [
        (float, agg.count()),
        (float, agg.max("price")),
        (float | None, agg.mean("price")),
        (float, agg.quantile("price", 0.5, where=lambda bid: True)),
        (mw.Timestamp, agg.count()),
        (int, agg.sum(lambda bid: bid.price)),
        (str | int, agg.count()),
        (Any, agg.last()),
        (object, agg.last()),
        (Bid, agg.last()),
        (Annotated[int, msgspec.Meta(ge=0)], agg.count()),
        (list[float], agg.collect("price")),
        (list[Any], agg.distinct("bidder")),
        (Literal["c", "a|b"], agg.max("bidder")),
    ],
)
def test_a_field_that_can_hold_its_aggregate(field: Any, aggregate: Any) -> None:
    into = msgspec.defstruct("Into", [("auction", int), ("start", int), ("found", field)])
    assert len(results(("auction",), windows.tumbling(TEN), into, found=aggregate)) == 2
