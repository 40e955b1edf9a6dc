"""The records of the compared programs, and what a pair of them is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

import millwheel as mw
from millwheel.sdk.keys import KeyExtractor

__all__ = ["BEGIN", "SECOND", "Bid", "Pair", "Row", "chunks_of", "plain", "topology_of"]

BEGIN: Final = 1_700_000_000_000_000
SECOND: Final = mw.seconds(1)
CHUNK: Final = 1_000
"""Records that arrive together. They are a second of event time, in any order."""
_KEYS: Final = 200
_EVERY: Final = SECOND // CHUNK
AUCTION: Final = mw.key("auction")


class Bid(msgspec.Struct):
    """About 70 bytes in MessagePack."""

    auction: int
    bidder: int
    price: int
    channel: str


Row = tuple[str, Bid, mw.Timestamp]
"""(stream, value, timestamp) of a record."""


class Pair(NamedTuple):
    """The same program by the library and by hand. Both read ``bids``, and ``asks`` if there are some."""

    name: str
    library: Callable[[mw.Stream[Bid], mw.Stream[Bid]], Any]
    """Takes the streams ``bids`` and ``asks``. The results are in the stream ``out``."""
    by_hand: Callable[[mw.Topology], None]
    asks: int = 0
    """One record in so many is of ``asks``. 0: none."""


def topology_of(pair: Pair, *, by_hand: bool) -> mw.Topology:
    """One of both programs."""
    topology = mw.Topology("compared")
    bids = topology.source("bids", Bid)
    asks = topology.source("asks", Bid) if pair.asks else bids
    if by_hand:
        pair.by_hand(topology)
    else:
        pair.library(bids, asks)
    return topology


def plain(
    computation: type[mw.Computation[Any, Any]],
    result: Any,
    *inputs: str,
    key: KeyExtractor = AUCTION,
    **options: Any,
) -> Callable[[mw.Topology], None]:
    """A program of one computation, whose key is the auction by default. ``inputs``: beside ``bids``."""

    def add(topology: mw.Topology) -> None:
        keys = dict.fromkeys(("bids", *inputs), key)
        topology.add(computation, name="out", inputs=keys, outputs={"out": result}, **options)

    return add


def chunks_of(pair: Pair, count: int) -> Iterator[list[Row]]:
    """The records of both programs, as they arrive: those of each second are shuffled."""
    chance = Random(7)
    for begin in range(0, count, CHUNK):
        chunk = [_record(chance, number, pair.asks) for number in range(begin, min(count, begin + CHUNK))]
        chance.shuffle(chunk)
        yield chunk


def _record(chance: Random, number: int, asks: int) -> Row:
    stream = "asks" if asks and number % asks == 0 else "bids"
    channel = f"channel {chance.randrange(4)}"
    value = Bid(chance.randrange(_KEYS), chance.randrange(5_000), chance.randrange(10**6), channel)
    return stream, value, mw.Timestamp(BEGIN + number * _EVERY)
