"""Nexmark's queries, each a few lines. ``build("q5")`` is a topology that reads all events from one stream.

What a query means is on the benchmark's page, https://github.com/nexmark/nexmark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

import millwheel as mw
from examples.nexmark.events import Auction, Bid, Event, Person
from millwheel import agg
from millwheel.windows import Result, sliding, tumbling

__all__ = ["QUERIES", "build"]

TEN: Final = mw.seconds(10)


class Price(msgspec.Struct, frozen=True):
    """Q2: the price of a bid."""

    auction: int
    price: int


class Local(msgspec.Struct, frozen=True):
    """Q3: somebody nearby who sells."""

    name: str
    city: str
    state: str
    auction: int


class Rise(msgspec.Struct, frozen=True):
    """Q4: how much a bid raises the price of its auction, and whether it is the first."""

    category: int
    first: int
    cents: int


class Closing(msgspec.Struct, frozen=True):
    """Q4: how many auctions of a category were sold, and the sum of their prices."""

    category: int
    sold: int
    total: int

    @property
    def average(self) -> float:
        """The average price."""
        return self.total / self.sold


class Seller(msgspec.Struct, frozen=True):
    """Q8: somebody new who sells at once."""

    person: int
    name: str
    end: mw.Timestamp


class Last(msgspec.Struct, frozen=True):
    """Q18: the last bid of a bidder in an auction."""

    auction: int
    bidder: int
    bid: Bid


class Best(msgspec.Struct, frozen=True):
    """Q19: the ten highest bids of an auction."""

    auction: int
    bids: list[Bid]


class Expanded(msgspec.Struct, frozen=True):
    """Q20: a bid with its auction."""

    bid: Bid
    auction: Auction


def q0(events: mw.Stream[Event]) -> None:
    """Pass bids through."""
    events.only(Bid).named("q0")


def q1(events: mw.Stream[Event]) -> None:
    """Prices in another currency."""
    events.only(Bid).map(lambda bid: msgspec.structs.replace(bid, price=bid.price * 908 // 1_000), Bid).named("q1")


def q2(events: mw.Stream[Event]) -> None:
    """The prices of some auctions."""
    some = events.only(Bid).filter(lambda bid: bid.auction % 123 == 0)
    some.map(lambda bid: Price(bid.auction, bid.price), Price).named("q2")


def q3(events: mw.Stream[Event]) -> None:
    """Who sells in category 10, in three states."""
    near = events.only(Person).filter(lambda person: person.state in ("OR", "ID", "CA")).key_by(lambda one: one.id)
    sold = events.only(Auction).filter(lambda auction: auction.category == 10).key_by(lambda auction: auction.seller)
    near.join("q3", sold, lambda one, auction: Local(one.name, one.city, one.state, auction.id), Local)


def q4(events: mw.Stream[Event]) -> None:
    """The average closing price of each category."""
    auctions = events.only(Auction).key_by(lambda auction: auction.id)
    bids = events.only(Bid).key_by(lambda bid: bid.auction)
    offers = auctions.join("offers", bids, lambda one, bid: Expanded(bid, one), Expanded)
    timely = offers.filter(lambda offer: offer.auction.at <= offer.bid.at <= offer.auction.expires)
    rises = timely.key_by("auction.id").update("rises", 0, _rise, Rise)
    rises.key_by("category").aggregate("q4", Closing, sold=agg.sum("first"), total=agg.sum("cents"))


def _rise(highest: int, offer: Expanded) -> tuple[int, list[Rise]]:
    more = offer.bid.price - highest
    return (offer.bid.price, [Rise(offer.auction.category, int(not highest), more)]) if more > 0 else (highest, [])


def q5(events: mw.Stream[Event]) -> None:
    """The auctions with the most bids in each ten seconds, every two seconds."""
    bids = events.only(Bid).key_by(lambda bid: bid.auction).window(sliding(TEN, mw.seconds(2)))
    counts = bids.aggregate("counts", agg.count())
    counts.key_by("start").complete("q5", lambda group: agg.best(group, lambda one: one.value), Result[int])


def q7(events: mw.Stream[Event]) -> None:
    """The highest bid of each ten seconds."""
    events.only(Bid).key_by(mw.everything).window(tumbling(TEN)).aggregate("q7", agg.max_by("price"))


def q8(events: mw.Stream[Event]) -> None:
    """People who came and sold in the same ten seconds."""
    people = events.only(Person).key_by(lambda person: person.id).window(tumbling(TEN))
    sold = events.only(Auction).key_by(lambda auction: auction.seller)
    sellers = people.join("sellers", sold, lambda one, _: Seller(one.id, one.name, _end(one.at)), Seller)
    sellers.key_by("person", "end").deduplicate("q8", TEN)


def _end(at: mw.Timestamp) -> mw.Timestamp:
    return mw.Timestamp(at - at % TEN + TEN)


def q18(events: mw.Stream[Event]) -> None:
    """The last bid of each bidder in each auction."""
    events.only(Bid).key_by("auction", "bidder").aggregate("q18", Last, bid=agg.last())


def q19(events: mw.Stream[Event]) -> None:
    """The ten highest bids of each auction."""
    events.only(Bid).key_by(lambda bid: bid.auction).aggregate("q19", Best, bids=agg.top(10, "price"))


def q20(events: mw.Stream[Event]) -> None:
    """The bids in auctions of category 10, with their auctions."""
    tens = events.only(Auction).filter(lambda auction: auction.category == 10).key_by(lambda auction: auction.id)
    tens.join("q20", events.only(Bid).key_by(lambda bid: bid.auction), lambda one, bid: Expanded(bid, one), Expanded)


QUERIES: Final[dict[str, Callable[[mw.Stream[Event]], None]]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q4, q5, q7, q8, q18, q19, q20)
}


def build(name: str) -> mw.Topology:
    """The topology of a query. Its results are in the stream of the query's name.

    Args:
        name: Such as ``"q5"``.
    """
    topology = mw.Topology(name)
    QUERIES[name](topology.source("events", Event))
    return topology
