"""Nexmark's events: people, auctions and bids of an auction site, generated from a seed.

The shares and distributions are those of the published generator, https://github.com/nexmark/nexmark. Of each 50 events
one is a person, three are auctions and 46 are bids. Half of the bids are for a hot auction, and three quarters are by a
hot bidder. Some bids and auctions refer to what comes later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from string import ascii_lowercase
from typing import Final

import msgspec

import millwheel as mw

__all__ = ["SIDE_INPUT", "Auction", "Bid", "Event", "Person", "Side", "generate"]

BEGIN: Final = mw.Timestamp(1_700_000_000_000_000)
_FIRST: Final = 1_000
"""The first id of people and of auctions."""
_HOT: Final = 100
"""Of so many ids in a row, one is hot."""
_LEAD: Final = 10
"""How many ids that do not exist yet are referred to."""
_OPEN: Final = 100
"""How many recent auctions get bids."""
_ACTIVE: Final = 1_000
"""How many recent people bid and sell."""
_STATES: Final = ["AZ", "CA", "ID", "OR", "WA", "WY"]
_CITIES: Final = [
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
]
_NAMES: Final = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
_SURNAMES: Final = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
_CHANNELS: Final = ["Google", "Facebook", "Baidu", "Apple"]


class Person(msgspec.Struct, frozen=True, tag=True):
    """Somebody who sells and bids. ``at``: when, in microseconds."""

    id: int
    name: str
    email: str
    credit_card: str
    city: str
    state: str
    at: mw.Timestamp
    extra: str


class Auction(msgspec.Struct, frozen=True, tag=True):
    """An item that somebody sells. ``at``: when, in microseconds."""

    id: int
    item: str
    description: str
    initial_bid: int
    reserve: int
    category: int
    seller: int
    expires: mw.Timestamp
    at: mw.Timestamp
    extra: str


class Bid(msgspec.Struct, frozen=True, tag=True):
    """A price that somebody offers in an auction. ``at``: when, in microseconds."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    at: mw.Timestamp
    extra: str


Event = Person | Auction | Bid


class Side(msgspec.Struct, frozen=True):
    """A row of Q13's side input."""

    key: int
    value: str


SIDE_INPUT: Final = [Side(key, str(key)) for key in range(10_000)]


def generate(count: int, seed: int, every: mw.Duration) -> Iterator[Event]:
    """Generate events.

    Args:
        count: How many.
        seed: Determines all of them.
        every: The time between two events, in microseconds.
    """
    site = _Site(Random(seed), every)
    for number in range(count):
        at, place = mw.Timestamp(BEGIN + number * every), number % 50
        yield site.person(at) if place == 0 else site.auction(at) if place < 4 else site.bid(at)


@dataclass
class _Site:
    """Draws events. ``people`` and ``auctions`` are how many there are so far."""

    chance: Random
    every: int
    people: int = 0
    auctions: int = 0
    hot_urls: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.hot_urls = [self._url() for _ in _CHANNELS]

    def person(self, at: mw.Timestamp) -> Person:
        """The next person."""
        chance = self.chance
        self.people += 1
        name = f"{chance.choice(_NAMES)} {chance.choice(_SURNAMES)}"
        email = f"{self._text(7)}@{self._text(5)}.com"
        card = " ".join(f"{chance.randrange(10_000):04}" for _ in range(4))
        city, state = chance.choice(_CITIES), chance.choice(_STATES)
        size = 8 + len(name) + len(email) + len(card) + len(city) + len(state)
        return Person(_FIRST + self.people - 1, name, email, card, city, state, at, self._extra(200 - size))

    def auction(self, at: mw.Timestamp) -> Auction:
        """The next auction. It lasts until the next hundred auctions have begun, on average."""
        chance = self.chance
        self.auctions += 1
        seller = (self.people - 1) // _HOT * _HOT if chance.randrange(4) else self._anybody()
        item, description, price = self._text(20), self._text(100), self._price()
        expires = mw.Timestamp(at + 1 + chance.randrange(2 * _OPEN * 50 // 3 * self.every))
        category, reserve = 10 + chance.randrange(5), price + self._price()
        extra = self._extra(500 - 48 - len(item) - len(description))
        number = _FIRST + self.auctions - 1
        return Auction(number, item, description, price, reserve, category, _FIRST + seller, expires, at, extra)

    def bid(self, at: mw.Timestamp) -> Bid:
        """A bid."""
        chance, last = self.chance, self.auctions - 1
        oldest = max(0, last - _OPEN)
        hot = chance.randrange(2)
        auction = last // _HOT * _HOT if hot else oldest + chance.randrange(last - oldest + 1 + _LEAD)
        bidder = (self.people - 1) // _HOT * _HOT + 1 if chance.randrange(4) else self._anybody()
        price = self._price()
        channel, url = self._channel()
        return Bid(_FIRST + auction, _FIRST + bidder, price, channel, url, at, self._extra(100 - 32))

    def _anybody(self) -> int:
        """An active person, or one that comes soon."""
        active = min(self.people, _ACTIVE)
        return self.people - active + self.chance.randrange(active + _LEAD)

    def _price(self) -> int:
        """In cents."""
        return round(100 * 10 ** (self.chance.random() * 6))

    def _channel(self) -> tuple[str, str]:
        """A channel and its URL. Those of one channel are always the same."""
        if self.chance.randrange(2):
            number = self.chance.randrange(len(_CHANNELS))
            return _CHANNELS[number], self.hot_urls[number]
        number = self.chance.randrange(10_000)
        of_channel = _Site(Random(number), 0)
        query = f"&channel_id={int(f'{number:032b}'[::-1], 2)}" if of_channel.chance.randrange(10) else ""
        return f"channel-{number}", of_channel.hot_urls[0] + query

    def _url(self) -> str:
        directories = "/".join(self._text(5, "_") for _ in range(3))
        return f"https://www.nexmark.com/{directories}/item.htm?query=1"

    def _text(self, most: int, special: str = " ") -> str:
        """From 3 letters on, some of which are the special one."""
        letters = [self.chance.choice(ascii_lowercase) for _ in range(self.chance.randrange(3, most))]
        return "".join(special if self.chance.randrange(13) == 0 else letter for letter in letters).strip()

    def _extra(self, size: int) -> str:
        """A text that gives a record its average size."""
        if size <= 0:
            return ""
        delta = round(size * 0.2)
        more = self.chance.randrange(2 * delta) if delta else 0
        return "".join(self.chance.choices(ascii_lowercase, k=size - delta + more))
