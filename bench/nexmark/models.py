"""What each query must give, computed from the list of events by plain loops. Pure, and independent of all systems.

A row is a tuple of numbers and texts. Times are in microseconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from examples.nexmark.events import Auction, Bid, Event, Person

__all__ = ["COMPARED", "Row", "expected"]

Row = tuple[Any, ...]
T = TypeVar("T")
_WINDOW: Final = 10_000_000
_SLIDE: Final = 2_000_000
_NEAR: Final = ("OR", "ID", "CA")
_fields = msgspec.structs.astuple


def expected(query: str, events: Sequence[Event]) -> Counter[Row]:
    """The rows of a query, and how often each is there.

    Args:
        query: One of ``COMPARED``.
        events: All events, by their times.
    """
    return Counter(_MODELS[query](events))


def _all(kind: type[T], events: Iterable[Event]) -> list[T]:
    return [event for event in events if isinstance(event, kind)]


def _q0(events: Sequence[Event]) -> Iterator[Row]:
    return map(_fields, _all(Bid, events))


def _q1(events: Sequence[Event]) -> Iterator[Row]:
    for bid in _all(Bid, events):
        yield bid.auction, bid.bidder, bid.price * 908 // 1_000, *_fields(bid)[3:]


def _q2(events: Sequence[Event]) -> Iterator[Row]:
    return ((bid.auction, bid.price) for bid in _all(Bid, events) if bid.auction % 123 == 0)


def _q3(events: Sequence[Event]) -> Iterator[Row]:
    near = {one.id: one for one in _all(Person, events) if one.state in _NEAR}
    for auction in _all(Auction, events):
        if auction.category == 10 and (one := near.get(auction.seller)):
            yield one.name, one.city, one.state, auction.id


def _q4(events: Sequence[Event]) -> Iterator[Row]:
    prices: defaultdict[int, list[int]] = defaultdict(list)
    for auction, bid in _winning(events):
        prices[auction.category].append(bid.price)
    return ((category, len(found), sum(found)) for category, found in prices.items())


def _winning(events: Sequence[Event]) -> list[tuple[Auction, Bid]]:
    """The highest bid of each auction that came in time, the first of equal ones."""
    auctions = {one.id: one for one in _all(Auction, events)}
    best: dict[int, Bid] = {}
    for bid in _all(Bid, events):
        auction = auctions.get(bid.auction)
        if auction and auction.at <= bid.at <= auction.expires:
            former = best.get(bid.auction)
            if former is None or bid.price > former.price:
                best[bid.auction] = bid
    return [(auctions[number], bid) for number, bid in best.items()]


def _q5(events: Sequence[Event]) -> Iterator[Row]:
    counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for bid in _all(Bid, events):
        newest = bid.at - bid.at % _SLIDE
        for start in range(newest - _WINDOW + _SLIDE, newest + 1, _SLIDE):
            counts[start][bid.auction] += 1
    for start, found in counts.items():
        most = max(found.values())
        yield from ((auction, start, start + _WINDOW, most) for auction, bids in found.items() if bids == most)


def _q7(events: Sequence[Event]) -> Iterator[Row]:
    best: dict[int, Bid] = {}
    for bid in _all(Bid, events):
        former = best.setdefault(bid.at // _WINDOW, bid)
        if bid.price > former.price:
            best[bid.at // _WINDOW] = bid
    return ((bid.auction, bid.price, bid.bidder, bid.at) for bid in best.values())


def _q8(events: Sequence[Event]) -> Iterator[Row]:
    sold = {(one.seller, one.at // _WINDOW) for one in _all(Auction, events)}
    return ((one.id, one.name) for one in _all(Person, events) if (one.id, one.at // _WINDOW) in sold)


def _q9(events: Sequence[Event]) -> Iterator[Row]:
    for auction, bid in _winning(events):
        yield auction.id, auction.item, auction.seller, auction.category, bid.bidder, bid.price, bid.at


def _q11(events: Sequence[Event]) -> Iterator[Row]:
    times: defaultdict[int, list[int]] = defaultdict(list)
    for bid in _all(Bid, events):
        times[bid.bidder].append(bid.at)
    for bidder, found in times.items():
        first, bids = found[0], 0
        for at, following in zip(found, [*found[1:], None], strict=True):
            bids += 1
            if following is None or following - at >= _WINDOW:
                yield bidder, first, at + _WINDOW, bids
                first, bids = following or 0, 0


def _q18(events: Sequence[Event]) -> Iterator[Row]:
    last = {(bid.auction, bid.bidder): bid for bid in _all(Bid, events)}
    return map(_fields, last.values())


def _q19(events: Sequence[Event]) -> Iterator[Row]:
    prices: defaultdict[int, list[int]] = defaultdict(list)
    for bid in _all(Bid, events):
        prices[bid.auction].append(bid.price)
    return ((auction, price) for auction, found in prices.items() for price in sorted(found)[-10:])


def _q20(events: Sequence[Event]) -> Iterator[Row]:
    tens = {one.id: one for one in _all(Auction, events) if one.category == 10}
    for bid in _all(Bid, events):
        if auction := tens.get(bid.auction):
            yield *_fields(bid), *_fields(auction)


_MODELS: Final[dict[str, Callable[[Sequence[Event]], Iterable[Row]]]] = {
    "q0": _q0,
    "q1": _q1,
    "q2": _q2,
    "q3": _q3,
    "q4": _q4,
    "q5": _q5,
    "q7": _q7,
    "q8": _q8,
    "q9": _q9,
    "q11": _q11,
    "q18": _q18,
    "q19": _q19,
    "q20": _q20,
}
COMPARED: Final = tuple(_MODELS)
"""The queries that are measured. Without q12: its results depend on the clock."""
