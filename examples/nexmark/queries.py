"""Nexmark's queries, each a few lines. ``build("q5")`` is a topology that reads all events from one stream.

A query takes the stream of events and returns the stream of its results, so `bench/nexmark` uses it between files.

What a query means is on the benchmark's page, https://github.com/nexmark/nexmark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

import millwheel as mw
from examples.nexmark.events import Auction, Bid, Event, Person, Side
from millwheel import agg
from millwheel.windows import Result, session, sliding, tumbling

__all__ = ["QUERIES", "STATELESS", "build", "nexmark"]

TEN: Final = mw.seconds(10)
DAY: Final = mw.hours(24)
Aggregate = agg.Aggregator[Any, Any]


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


class Highest(msgspec.Struct, frozen=True):
    """Q4: the highest bid of an auction that came in time."""

    id: int
    category: int
    price: int


class Closing(msgspec.Struct, frozen=True):
    """Q4: how many auctions of a category were sold, and the sum of their prices."""

    category: int
    sold: int
    total: int

    @property
    def average(self) -> float:
        """The average price. Between a retraction and what it makes room for, there may be no price."""
        return self.total / self.sold if self.sold else 0.0


class Seller(msgspec.Struct, frozen=True):
    """Q8: somebody new who sells at once."""

    person: int
    name: str


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
    """Q9, Q20: a bid with its auction."""

    bid: Bid
    auction: Auction


class Winning(msgspec.Struct, frozen=True):
    """Q9: the highest bid of an auction that came in time, the first of equal ones."""

    offer: Expanded


class ClockCount(msgspec.Struct, frozen=True):
    """Q12: the bids of a bidder that were processed from ``start`` to ``end`` on the clock."""

    bidder: int
    bids: int
    start: mw.Timestamp
    end: mw.Timestamp


class Looked(msgspec.Struct, frozen=True):
    """Q13: a bid with a value of the side input."""

    bid: Bid
    value: str


class Converted(msgspec.Struct, frozen=True):
    """Q14: a bid in another currency, in thousandths of a cent."""

    bid: Bid
    price: int
    time_of_day: str
    letters_c: int


class Statistics(msgspec.Struct, frozen=True):
    """Q15: of a day. The ranks are prices below 100, below 10,000, and from there on."""

    start: mw.Timestamp
    bids: int
    rank1_bids: int
    rank2_bids: int
    rank3_bids: int
    bidders: int
    rank1_bidders: int
    rank2_bidders: int
    rank3_bidders: int
    auctions: int
    rank1_auctions: int
    rank2_auctions: int
    rank3_auctions: int


class ChannelStatistics(Statistics, frozen=True, kw_only=True):
    """Q16: the same of a channel, and the minute of its last bid."""

    channel: str
    minute: str


class AuctionStatistics(msgspec.Struct, frozen=True):
    """Q17: the bids of an auction in a day."""

    auction: int
    start: mw.Timestamp
    bids: int
    rank1_bids: int
    rank2_bids: int
    rank3_bids: int
    lowest: int
    highest: int
    average: float
    total: int


class Channel(msgspec.Struct, frozen=True):
    """Q21: a bid with the id of its channel."""

    bid: Bid
    id: str


class Directories(msgspec.Struct, frozen=True):
    """Q22: a bid with the directories of its URL."""

    bid: Bid
    first: str
    second: str
    third: str


def q0(events: mw.Stream[Event]) -> mw.Stream[Bid]:
    """Pass bids through."""
    return events.only(Bid)


def q1(events: mw.Stream[Event]) -> mw.Stream[Bid]:
    """Prices in another currency."""
    return events.only(Bid).map(lambda bid: msgspec.structs.replace(bid, price=bid.price * 908 // 1_000), Bid)


def q2(events: mw.Stream[Event]) -> mw.Stream[Price]:
    """The prices of some auctions."""
    some = events.only(Bid).filter(lambda bid: bid.auction % 123 == 0)
    return some.map(lambda bid: Price(bid.auction, bid.price), Price)


def q3(events: mw.Stream[Event]) -> mw.Stream[Local]:
    """Who sells in category 10, in three states."""
    near = events.only(Person).filter(lambda person: person.state in ("OR", "ID", "CA")).key_by(lambda one: one.id)
    sold = events.only(Auction).filter(lambda auction: auction.category == 10).key_by(lambda auction: auction.seller)
    return near.join("q3", sold, lambda one, auction: Local(one.name, one.city, one.state, auction.id), Local)


def q4(events: mw.Stream[Event]) -> mw.Stream[Closing]:
    """The average closing price of each category."""
    bids = events.only(Bid).key_by("auction")
    offers = events.only(Auction).key_by("id").join("offers", bids, lambda one, bid: Expanded(bid, one), Expanded)
    timely = offers.filter(lambda offer: offer.auction.at <= offer.bid.at <= offer.auction.expires)
    highest = timely.key_by("auction.id", "auction.category").aggregate("highest", Highest, price=agg.max("bid.price"))
    sales = highest.key_by("id").changes("changes").key_by("value.category")
    return sales.aggregate("q4", Closing, sold=agg.sum("weight"), total=agg.sum(lambda it: it.weight * it.value.price))


def q5(events: mw.Stream[Event]) -> mw.Stream[Result[int]]:
    """The auctions with the most bids in each ten seconds, every two seconds."""
    bids = events.only(Bid).key_by(lambda bid: bid.auction).window(sliding(TEN, mw.seconds(2)))
    counts = bids.aggregate("counts", agg.count())
    return counts.key_by("start").complete("q5", lambda group: agg.best(group, lambda one: one.value), Result[int])


def q7(events: mw.Stream[Event]) -> mw.Stream[Result[Bid]]:
    """The highest bid of each ten seconds."""
    return events.only(Bid).key_by(mw.everything).window(tumbling(TEN)).aggregate("q7", agg.max_by("price"))


def q8(events: mw.Stream[Event]) -> mw.Stream[Seller]:
    """People who came and sold in the same ten seconds."""
    people = events.only(Person).key_by(lambda person: person.id).window(tumbling(TEN))
    sold = events.only(Auction).key_by(lambda auction: auction.seller)
    return people.cogroup("q8", sold, lambda new, sales: [Seller(one.id, one.name) for one in new if sales], Seller)


def q9(events: mw.Stream[Event]) -> mw.Stream[Winning]:
    """The winning bid of each auction."""
    auctions = events.only(Auction).key_by(lambda auction: auction.id)
    bids = events.only(Bid).key_by(lambda bid: bid.auction)
    offers = auctions.join("q9-offers", bids, lambda one, bid: Expanded(bid, one), Expanded)
    timely = offers.filter(lambda offer: offer.auction.at <= offer.bid.at <= offer.auction.expires)
    return timely.key_by("auction.id").aggregate("q9", Winning, offer=agg.max_by("bid.price"))


def q11(events: mw.Stream[Event]) -> mw.Stream[Result[int]]:
    """The bids of each session of a bidder, which ends ten seconds after its last bid."""
    return events.only(Bid).key_by("bidder").window(session(TEN)).aggregate("q11", agg.count())


def q12(events: mw.Stream[Event]) -> mw.Stream[ClockCount]:
    """The bids of each bidder that are processed in the same ten seconds of the clock."""
    return events.only(Bid).key_by("bidder").process("q12", ClockCounter("q12"), {"q12": ClockCount})


class ClockCounter(mw.Computation[Bid, dict[int, int]]):
    """Counts by windows of the clock. No operator has such windows: their results depend on when records come."""

    def __init__(self, output: str) -> None:
        self.output = output

    def process_record(self, ctx: mw.Context[dict[int, int]], record: mw.Record[Bid]) -> None:
        """Count the bid."""
        end = ctx.now - ctx.now % TEN + TEN
        ctx.state[end] = ctx.state.get(end, 0) + 1
        ctx.set_timer(mw.Timestamp(end), str(end), domain=mw.TimeDomain.PROCESSING_TIME)

    def process_timer(self, ctx: mw.Context[dict[int, int]], timer: mw.Timer) -> None:
        """Produce the count."""
        start, end = mw.Timestamp(timer.timestamp - TEN), timer.timestamp
        ctx.produce(self.output, ClockCount(int(ctx.key), ctx.state.pop(end), start, end))


def q13(events: mw.Stream[Event], side: mw.Stream[Side]) -> mw.Stream[Looked]:
    """Each bid with a value of the side input, which comes before."""
    bids = events.only(Bid).key_by(lambda bid: bid.auction % 10_000)
    return bids.join_latest("q13", side.key_by("key"), lambda bid, row: Looked(bid, row.value), Looked)


def q14(events: mw.Stream[Event]) -> mw.Stream[Converted]:
    """Bids of some prices, with the time of their day and a count of letters."""
    wanted = events.only(Bid).filter(lambda bid: 1_000_000_000 < bid.price * 908 < 50_000_000_000)
    return wanted.map(_converted)


def _converted(bid: Bid) -> Converted:
    return Converted(bid, bid.price * 908, _time_of_day(bid), bid.extra.count("c"))


def _time_of_day(bid: Bid) -> str:
    hour = bid.at % DAY // mw.hours(1)
    return "day" if 8 <= hour <= 18 else "night" if hour <= 6 or hour >= 20 else "other"


def q15(events: mw.Stream[Event]) -> mw.Stream[Statistics]:
    """Statistics of each day."""
    bids = events.only(Bid).key_by(mw.everything).window(tumbling(DAY))
    return bids.aggregate("q15", Statistics, **_by_rank("bids", agg.count), **_numbers())


def q16(events: mw.Stream[Event]) -> mw.Stream[ChannelStatistics]:
    """Statistics of each channel and day."""
    bids = events.only(Bid).key_by("channel").window(tumbling(DAY))
    minute = agg.max(lambda bid: mw.to_datetime(bid.at).strftime("%H:%M"), str)
    return bids.aggregate("q16", ChannelStatistics, minute=minute, **_by_rank("bids", agg.count), **_numbers())


def q17(events: mw.Stream[Event]) -> mw.Stream[AuctionStatistics]:
    """Statistics of each auction and day."""
    bids = events.only(Bid).key_by("auction").window(tumbling(DAY))
    low, high, mean, total = (each("price") for each in (agg.min, agg.max, agg.mean, agg.sum))
    by_rank = _by_rank("bids", agg.count)
    return bids.aggregate("q17", AuctionStatistics, lowest=low, highest=high, average=mean, total=total, **by_rank)


def _by_rank(name: str, aggregate: Callable[..., Aggregate]) -> Any:
    """The aggregate of all bids, and of those of each rank, by name. Any, because a dict's keywords fit no overload."""
    ranks: list[Callable[[Bid], bool]] = [
        lambda bid: bid.price < 10_000,
        lambda bid: 10_000 <= bid.price < 1_000_000,
        lambda bid: bid.price >= 1_000_000,
    ]
    return {name: aggregate()} | {f"rank{rank}_{name}": aggregate(where=where) for rank, where in enumerate(ranks, 1)}


def _numbers() -> Any:
    """How many bidders and auctions there are."""
    return _by_rank("bidders", partial(_number_of, "bidder")) | _by_rank("auctions", partial(_number_of, "auction"))


def _number_of(field: str, where: Callable[[Bid], bool] | None = None) -> Aggregate:
    values = agg.distinct(field, int, where=where)
    return agg.Aggregator(list[int], values.new, values.add, values.merge, len, int)


def q18(events: mw.Stream[Event]) -> mw.Stream[Last]:
    """The last bid of each bidder in each auction."""
    return events.only(Bid).key_by("auction", "bidder").aggregate("q18", Last, bid=agg.last())


def q19(events: mw.Stream[Event]) -> mw.Stream[Best]:
    """The ten highest bids of each auction."""
    return events.only(Bid).key_by(lambda bid: bid.auction).aggregate("q19", Best, bids=agg.top(10, "price"))


def q20(events: mw.Stream[Event]) -> mw.Stream[Expanded]:
    """The bids in auctions of category 10, with their auctions."""
    tens = events.only(Auction).filter(lambda auction: auction.category == 10).key_by(lambda auction: auction.id)
    bids = events.only(Bid).key_by(lambda bid: bid.auction)
    return tens.join("q20", bids, lambda one, bid: Expanded(bid, one), Expanded)


def q21(events: mw.Stream[Event]) -> mw.Stream[Channel]:
    """Bids with the id of their channel."""
    with_id = events.only(Bid).map(lambda bid: Channel(bid, _channel_id(bid)), Channel)
    return with_id.filter(lambda one: one.id != "")


def _channel_id(bid: Bid) -> str:
    known = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
    found = re.search("(&|^)channel_id=([^&]*)", bid.url)
    return known.get(bid.channel.lower()) or (found[2] if found else "")


def q22(events: mw.Stream[Event]) -> mw.Stream[Directories]:
    """Bids with the directories of their URL."""
    return events.only(Bid).map(lambda bid: Directories(bid, *bid.url.split("/")[3:6]), Directories)


QUERIES: Final[dict[str, Callable[..., mw.Stream[Any]]]] = {
    query.__name__: query
    for query in (
        *(q0, q1, q2, q3, q4, q5, q7, q8, q9, q11, q12, q13),
        *(q14, q15, q16, q17, q18, q19, q20, q21, q22),
    )
}
STATELESS: Final = ("q0", "q1", "q2", "q14", "q21", "q22")
"""Queries without a step that keeps something. Their results have no name until they get one."""


def build(*names: str) -> mw.Topology:
    """A topology of some queries. The results of each are in the stream of its name.

    Args:
        names: Such as ``"q5"``. By default all.
    """
    topology = mw.Topology("nexmark")
    events = topology.source("events", Event)
    for name in names or QUERIES:
        results = QUERIES[name](events, *([topology.source("side", Side)] if name == "q13" else []))
        if name in STATELESS:
            results.named(name)
    return topology


nexmark = build()
