"""Joins, by the library and by hand."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Final

import msgspec

import millwheel as mw
from bench.operators.records import Bid, Pair, plain
from millwheel import windows

__all__ = ["PAIRS"]

NEAR: Final = mw.milliseconds(500)
SIZE: Final = mw.seconds(1)
Kept = tuple[int, Bid]
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class Match(msgspec.Struct, frozen=True):
    """A bid with an ask."""

    auction: int
    bid: int
    ask: int


def match(bid: Bid, ask: Bid) -> Match:
    """The result of a pair."""
    return Match(bid.auction, bid.price, ask.price)


class Sides(msgspec.Struct, array_like=True):
    """The records of both streams, each with its time, in their order."""

    bids: list[Kept] = msgspec.field(default_factory=list)
    asks: list[Kept] = msgspec.field(default_factory=list)


def _time(kept: Kept) -> int:
    return kept[0]


class Forever(mw.Computation[Bid, Sides]):
    """Each two records of a key."""

    def process_record(self, ctx: mw.Context[Sides], record: mw.Record[Bid]) -> None:
        """Produce the record's pairs, and keep it."""
        at, value, sides = record.timestamp, record.value, ctx.state
        if record.stream == "bids":
            for time, ask in sides.asks:
                ctx.produce("out", match(value, ask), timestamp=mw.Timestamp(max(at, time)))
            sides.bids.append((at, value))
        else:
            for time, bid in sides.bids:
                ctx.produce("out", match(bid, value), timestamp=mw.Timestamp(max(at, time)))
            sides.asks.append((at, value))


class Near(mw.Computation[Bid, Sides]):
    """A bid, and an ask up to half a second after it."""

    def process_record(self, ctx: mw.Context[Sides], record: mw.Record[Bid]) -> None:
        """Produce the record's pairs, and keep it for later partners."""
        at, value, sides = int(record.timestamp), record.value, ctx.state
        new = at, value
        if record.stream == "bids":
            others, kept, low, high, tag = sides.asks, sides.bids, at, at + NEAR, "bids"
        else:
            others, kept, low, high, tag = sides.bids, sides.asks, at - NEAR, at, "asks"
        first, last = bisect_left(others, low, key=_time), bisect_right(others, high, key=_time)
        for time, other in others[first:last]:
            result = match(value, other) if tag == "bids" else match(other, value)
            ctx.produce("out", result, timestamp=mw.Timestamp(max(at, time)))
        insort(kept, new, key=_time)
        if kept[0] is new:
            ctx.set_timer(mw.Timestamp(high + 1), tag)

    def process_timer(self, ctx: mw.Context[Sides], timer: mw.Timer) -> None:
        """Drop the records that find no more partners."""
        sides = ctx.state
        kept, span = (sides.bids, NEAR) if timer.tag == "bids" else (sides.asks, 0)
        del kept[: bisect_right(kept, timer.timestamp - span - 1, key=_time)]
        if kept:
            ctx.set_timer(mw.Timestamp(kept[0][0] + span + 1), timer.tag)


class WithLatest(mw.Computation[Bid, Bid | None]):
    """A bid with the last ask."""

    def process_record(self, ctx: mw.Context[Bid | None], record: mw.Record[Bid]) -> None:
        """Produce the result of a bid, or keep an ask."""
        if record.stream == "asks":
            ctx.state = record.value
        elif (ask := ctx.state) is not None:
            ctx.produce("out", match(record.value, ask))


class AsOf(mw.Computation[Bid, Sides]):
    """A bid with the newest ask up to its time."""

    def process_record(self, ctx: mw.Context[Sides], record: mw.Record[Bid]) -> None:
        """Keep the record."""
        new, sides = (record.timestamp, record.value), ctx.state
        if record.stream == "asks":
            insort(sides.asks, new, key=lambda one: (one[0], _encode(one[1])))
            self._forget(ctx, sides)
            return
        insort(sides.bids, new, key=_time)
        if sides.bids[0] is new:
            self._wake(ctx, sides)

    def process_timer(self, ctx: mw.Context[Sides], timer: mw.Timer) -> None:
        """Produce the results of the bids whose time is over."""
        sides = ctx.state
        ready = bisect_right(sides.bids, timer.timestamp - 1, key=_time)
        for at, bid in sides.bids[:ready]:
            place = bisect_right(sides.asks, at, key=_time)
            if place:
                ctx.produce("out", match(bid, sides.asks[place - 1][1]), timestamp=mw.Timestamp(at))
        del sides.bids[:ready]
        if sides.bids:
            self._wake(ctx, sides)
        self._forget(ctx, sides)

    def _wake(self, ctx: mw.Context[Sides], sides: Sides) -> None:
        first = mw.Timestamp(sides.bids[0][0])
        ctx.set_timer(mw.Timestamp(first + 1), hold=first)

    def _forget(self, ctx: mw.Context[Sides], sides: Sides) -> None:
        needed = min(ctx.watermark, sides.bids[0][0]) if sides.bids else ctx.watermark
        old = bisect_right(sides.asks, needed, key=_time) - 1
        if old > 0:
            del sides.asks[:old]


class Pane(msgspec.Struct, array_like=True):
    """The records of a window."""

    bids: list[Bid] = msgspec.field(default_factory=list)
    asks: list[Bid] = msgspec.field(default_factory=list)


class InWindow(mw.Computation[Bid, dict[int, Pane]]):
    """Each two records of a window."""

    def process_record(self, ctx: mw.Context[dict[int, Pane]], record: mw.Record[Bid]) -> None:
        """Keep the record."""
        end = record.timestamp - record.timestamp % SIZE + SIZE
        pane = ctx.state.get(end)
        if pane is None:
            if end <= ctx.watermark:
                ctx.count_dropped()
                return
            pane = ctx.state[end] = Pane()
            ctx.set_timer(mw.Timestamp(end), str(end))
        (pane.bids if record.stream == "bids" else pane.asks).append(record.value)

    def process_timer(self, ctx: mw.Context[dict[int, Pane]], timer: mw.Timer) -> None:
        """Produce the pairs."""
        pane = ctx.state.pop(timer.timestamp)
        asks = sorted(pane.asks, key=_encode)
        for bid in sorted(pane.bids, key=_encode):
            for ask in asks:
                ctx.produce("out", match(bid, ask))


PAIRS: Final = (
    Pair(
        "join",
        lambda bids, asks: bids.key_by("auction").join("out", asks.key_by("auction"), match),
        plain(Forever, Match, "asks"),
        asks=50,
    ),
    Pair(
        "join_within",
        lambda bids, asks: bids.key_by("auction").join_within("out", asks.key_by("auction"), match, after=NEAR),
        plain(Near, Match, "asks"),
        asks=2,
    ),
    Pair(
        "join_latest",
        lambda bids, asks: bids.key_by("auction").join_latest("out", asks.key_by("auction"), match),
        plain(WithLatest, Match, "asks"),
        asks=10,
    ),
    Pair(
        "join_as_of",
        lambda bids, asks: bids.key_by("auction").join_as_of("out", asks.key_by("auction"), match),
        plain(AsOf, Match, "asks"),
        asks=5,
    ),
    Pair(
        "window_join",
        lambda bids, asks: (
            bids.key_by("auction").window(windows.tumbling(SIZE)).join("out", asks.key_by("auction"), match)
        ),
        plain(InWindow, Match, "asks"),
        asks=2,
    ),
)
