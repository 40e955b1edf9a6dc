"""Nexmark's events: people, auctions and bids of an auction site, generated from a seed.

Of each 50 events one is a person, three are auctions and 46 are bids. Bids are for recent auctions, and every second
one is for a hot one.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

import msgspec

import millwheel as mw

__all__ = ["Auction", "Bid", "Event", "Person", "generate"]

BEGIN: Final = mw.Timestamp(1_700_000_000_000_000)
_FIRST: Final = 1_000
"""The first id of people and of auctions."""
_STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
_OPEN: Final = 60
"""How many recent auctions get bids."""


class Person(msgspec.Struct, frozen=True, tag=True):
    """Somebody who sells and bids. ``at``: when, in microseconds."""

    id: int
    name: str
    city: str
    state: str
    at: mw.Timestamp


class Auction(msgspec.Struct, frozen=True, tag=True):
    """An item that somebody sells. ``at``: when, in microseconds."""

    id: int
    item: str
    category: int
    seller: int
    expires: mw.Timestamp
    at: mw.Timestamp


class Bid(msgspec.Struct, frozen=True, tag=True):
    """A price that somebody offers in an auction. ``at``: when, in microseconds."""

    auction: int
    bidder: int
    price: int
    channel: str
    at: mw.Timestamp


Event = Person | Auction | Bid


def generate(count: int, seed: int, every: mw.Duration) -> Iterator[Event]:
    """Generate events.

    Args:
        count: How many.
        seed: Determines all of them.
        every: The time between two events, in microseconds.
    """
    chance = Random(seed)
    people = auctions = _FIRST
    for number in range(count):
        at = mw.Timestamp(BEGIN + number * every)
        place = number % 50
        if place == 0:
            yield Person(people, f"name {people}", f"city {chance.randrange(5)}", chance.choice(_STATES), at)
            people += 1
        elif place < 4:
            seller = chance.randrange(max(_FIRST, people - 20), people)
            expires = mw.Timestamp(at + every * chance.randrange(100, 1_000))
            yield Auction(auctions, f"item {auctions}", 10 + chance.randrange(5), seller, expires, at)
            auctions += 1
        else:
            hot = chance.random() < 0.5
            auction = (auctions - 1) // 20 * 20 if hot else chance.randrange(max(_FIRST, auctions - _OPEN), auctions)
            bidder = chance.randrange(max(_FIRST, people - 50), people)
            yield Bid(auction, bidder, round(100 * 10 ** (chance.random() * 6)), f"channel {chance.randrange(4)}", at)
