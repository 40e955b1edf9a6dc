"""Steps that keep state by key, and steps without state, by the library and by hand."""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from hashlib import blake2b
from typing import Final
from zlib import crc32

import msgspec

import millwheel as mw
from bench.operators.records import Bid, Pair, plain
from millwheel import agg

__all__ = ["PAIRS"]

KEPT: Final = mw.seconds(2)
SILENCE: Final = mw.milliseconds(300)
TOP: Final = 10
SAMPLED: Final = 0.25
EXPENSIVE: Final = 900_000
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class Totals(msgspec.Struct, frozen=True):
    """The bids of an auction so far."""

    auction: int
    bids: int
    spent: int


class Best(msgspec.Struct, frozen=True):
    """The highest bids of an auction."""

    auction: int
    bids: list[Bid]


class Cheap(msgspec.Struct, frozen=True):
    """A bid in another currency."""

    auction: int
    price: int


class Sums(msgspec.Struct, array_like=True):
    """Of an auction."""

    bids: int = 0
    spent: int = 0


class Running(mw.Computation[Bid, Sums]):
    """Two aggregates, after each record."""

    def process_record(self, ctx: mw.Context[Sums], record: mw.Record[Bid]) -> None:
        """Add the record."""
        sums, bid = ctx.state, record.value
        sums.bids += 1
        sums.spent += bid.price
        ctx.produce("out", Totals(bid.auction, sums.bids, sums.spent))


class RunningTop(mw.Computation[Bid, list[tuple[int, int, bytes, Bid]]]):
    """The ten highest bids, when they change. The order of arrival has no effect."""

    def process_record(self, ctx: mw.Context[list[tuple[int, int, bytes, Bid]]], record: mw.Record[Bid]) -> None:
        """Add the record."""
        best, bid = ctx.state, record.value
        if len(best) == TOP and -bid.price > best[-1][0]:
            return
        new = (-bid.price, record.timestamp, _encode(bid), bid)
        insort(best, new, key=lambda one: one[:3])
        if len(best) > TOP and best.pop() is new:
            return
        ctx.produce("out", Best(bid.auction, [one[3] for one in best]))


class Highest(mw.Computation[Bid, int]):
    """What each bid adds to the highest price."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Bid]) -> None:
        """Produce what the record adds."""
        more = record.value.price - ctx.state
        if more > 0:
            ctx.state += more
            ctx.produce("out", more)


def rise(highest: int, bid: Bid) -> tuple[int, list[int]]:
    """The same as a function."""
    more = bid.price - highest
    return (bid.price, [more]) if more > 0 else (highest, [])


class UpToExpensive(mw.Computation[Bid, int | None]):
    """The bids of an auction up to an expensive one, and again two seconds later."""

    def process_record(self, ctx: mw.Context[int | None], record: mw.Record[Bid]) -> None:
        """Produce the record, unless the key has ended."""
        if ctx.state is None:
            bid = record.value
            if bid.price > EXPENSIVE:
                ctx.state = max(record.timestamp, ctx.watermark) + KEPT
                ctx.set_timer(mw.Timestamp(ctx.state), hold=mw.MAX_TIMESTAMP)
            ctx.produce("out", bid)

    def process_timer(self, ctx: mw.Context[int | None], timer: mw.Timer) -> None:
        """Begin again."""
        del ctx.state


class Newest(mw.Computation[Bid, tuple[int, Bid] | None]):
    """The newest record."""

    def process_record(self, ctx: mw.Context[tuple[int, Bid] | None], record: mw.Record[Bid]) -> None:
        """Pass the record if it is newer."""
        at, bid, newest = record.timestamp, record.value, ctx.state
        if newest is not None and (at < newest[0] or (at == newest[0] and _encode(bid) <= _encode(newest[1]))):
            return
        ctx.state = at, bid
        ctx.produce("out", bid)


class Differences(mw.Computation[Bid, Bid | None]):
    """The last record is taken back by one that differs."""

    def process_record(self, ctx: mw.Context[Bid | None], record: mw.Record[Bid]) -> None:
        """Produce what the record changes."""
        bid, former = record.value, ctx.state
        if bid == former:
            return
        ctx.state = bid
        if former is not None:
            ctx.produce("out", mw.Change(former, -1))
        ctx.produce("out", mw.Change(bid, 1))


class First(mw.Computation[Bid, int]):
    """The first record, until it is forgotten."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Bid]) -> None:
        """Pass the record if it is the first."""
        if not ctx.state:
            ctx.state = record.timestamp + KEPT
            ctx.set_timer(mw.Timestamp(ctx.state))
            ctx.produce("out", record.value)

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        """Forget it."""
        del ctx.state


class Tens(mw.Computation[Bid, tuple[int, int, int] | None]):
    """The sum of each ten records. The state is (count, latest timestamp, sum)."""

    def process_record(self, ctx: mw.Context[tuple[int, int, int] | None], record: mw.Record[Bid]) -> None:
        """Add the record."""
        bid, (count, latest, spent) = record.value, ctx.state or (0, 0, 0)
        count, latest, spent = count + 1, max(latest, record.timestamp), spent + bid.price
        if count < 10:
            ctx.state = count, latest, spent
        else:
            ctx.produce("out", Totals(bid.auction, count, spent), timestamp=mw.Timestamp(latest))
            del ctx.state


class Silence(mw.Computation[Bid, dict[int, tuple[int, Bid]]]):
    """The last record of each stretch of records. The state is (last time, last record) by the stretch's first time."""

    def process_record(self, ctx: mw.Context[dict[int, tuple[int, Bid]]], record: mw.Record[Bid]) -> None:
        """Add the record to its stretch."""
        at, bid, stretches = record.timestamp, record.value, ctx.state
        joined = [first for first, (last, _) in stretches.items() if first < at + SILENCE and at < last + SILENCE]
        if not joined and at + SILENCE <= ctx.watermark:
            return
        begin, end = int(at), int(at)
        for first in joined:
            last, other = stretches.pop(first)
            ctx.cancel_timer(str(first))
            begin = min(begin, first)
            if last > end or (last == end and _encode(other) > _encode(bid)):
                end, bid = last, other
        stretches[begin] = end, bid
        ctx.set_timer(mw.Timestamp(end + SILENCE), str(begin))

    def process_timer(self, ctx: mw.Context[dict[int, tuple[int, Bid]]], timer: mw.Timer) -> None:
        """Produce the last record."""
        _, bid = ctx.state.pop(int(timer.tag))
        ctx.produce("out", bid)


class Queue(msgspec.Struct, array_like=True):
    """The records that wait, in their order, and the highest price."""

    waiting: list[tuple[int, Bid]] = msgspec.field(default_factory=list)
    highest: int = 0


class InOrder(mw.Computation[Bid, Queue]):
    """What each bid adds to the highest price, in the order of time."""

    def process_record(self, ctx: mw.Context[Queue], record: mw.Record[Bid]) -> None:
        """Keep the record until no earlier one can come."""
        waiting = ctx.state.waiting
        if len(waiting) >= 10_000:
            raise ValueError("too many records wait")
        new = record.timestamp, record.value
        insort(waiting, new, key=lambda one: (one[0], _encode(one[1])))
        if waiting[0] is new:
            self._wake(ctx, waiting)

    def process_timer(self, ctx: mw.Context[Queue], timer: mw.Timer) -> None:
        """Handle what has waited."""
        queue = ctx.state
        passed = bisect_right(queue.waiting, ctx.watermark - 1, key=lambda one: one[0])
        for at, bid in queue.waiting[:passed]:
            more = bid.price - queue.highest
            if more > 0:
                queue.highest = bid.price
                ctx.produce("out", more, timestamp=mw.Timestamp(at))
        del queue.waiting[:passed]
        if queue.waiting:
            self._wake(ctx, queue.waiting)

    def _wake(self, ctx: mw.Context[Queue], waiting: list[tuple[int, Bid]]) -> None:
        first = mw.Timestamp(waiting[0][0])
        ctx.set_timer(mw.Timestamp(first + 1), hold=first)


class Groups(mw.Computation[Bid, dict[int, list[Bid]]]):
    """The highest bids of each time."""

    def process_record(self, ctx: mw.Context[dict[int, list[Bid]]], record: mw.Record[Bid]) -> None:
        """Keep the record until its time is over."""
        at = record.timestamp
        group = ctx.state.get(at)
        if group is None:
            ctx.state[at] = [record.value]
            ctx.set_timer(mw.Timestamp(at + 1), str(at), hold=at)
        else:
            group.append(record.value)

    def process_timer(self, ctx: mw.Context[dict[int, list[Bid]]], timer: mw.Timer) -> None:
        """Produce the highest bids."""
        at = int(timer.tag)
        group = ctx.state.pop(at)
        for bid in highest(sorted(group, key=_encode)):
            ctx.produce("out", bid, timestamp=mw.Timestamp(at))


def highest(group: list[Bid]) -> list[Bid]:
    """The bids with the highest price."""
    most = max(bid.price for bid in group)
    return [bid for bid in group if bid.price == most]


async def look_up(bid: Bid) -> int:
    """Stands for the call of a service."""
    await asyncio.sleep(0)
    return bid.price


class Enriched(mw.Computation[Bid, None]):
    """The results of calls."""

    async def process_record(self, ctx: mw.Context[None], record: mw.Record[Bid]) -> None:
        """Produce the result of a call."""
        async with asyncio.timeout(10):
            ctx.produce("out", await look_up(record.value))


class Sampled(mw.Computation[Bid, int]):
    """Counts a share of the bidders' bids."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Bid]) -> None:
        """Count the record if its bidder is chosen."""
        bid = record.value
        digest = blake2b(_encode(bid.bidder), digest_size=8, salt=bytes(16)).digest()
        if int.from_bytes(digest) < SAMPLED * 2**64:
            ctx.state += 1
            ctx.produce("out", Counted(bid.auction, ctx.state))


class Counted(msgspec.Struct, frozen=True):
    """How many bids of an auction there were."""

    auction: int
    bids: int


class Chained(mw.Computation[Bid, int]):
    """A filter, a function, and a sum."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Bid]) -> None:
        """Produce what the record adds."""
        bid = record.value
        if bid.price % 3:
            cheap = Cheap(bid.auction, bid.price * 908 // 1_000)
            ctx.state += cheap.price
            ctx.produce("out", ctx.state)


def in_total(total: int, cheap: Cheap) -> tuple[int, list[int]]:
    """The same as a function."""
    total += cheap.price
    return total, [total]


class Filtered(mw.Computation[Bid, int]):
    """A filter, and a sum."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Bid]) -> None:
        """Produce what the record adds."""
        bid = record.value
        if bid.price % 3:
            ctx.state += bid.price
            ctx.produce("out", ctx.state)


class Words(mw.Computation[Bid, None]):
    """A filter, a function, and the words of its results, without state."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Bid]) -> None:
        """Produce the words."""
        bid = record.value
        if bid.price % 3:
            for word in f"{bid.channel} {bid.auction}".split():
                ctx.produce("out", word)


def spread(bid: Bid) -> int:
    """One of many keys, as a step without state needs no key of its own, and no auction should have one machine."""
    return crc32(bid.bidder.to_bytes(4)) % 1_024


def _sum(total: int, bid: Bid) -> tuple[int, list[int]]:
    total += bid.price
    return total, [total]


PAIRS: Final = (
    Pair(
        "running",
        lambda bids, _: bids.key_by("auction").aggregate("out", Totals, bids=agg.count(), spent=agg.sum("price")),
        plain(Running, Totals),
    ),
    Pair(
        "running_top",
        lambda bids, _: bids.key_by("auction").aggregate("out", Best, bids=agg.top(TOP, "price")),
        plain(RunningTop, Best),
    ),
    Pair("update", lambda bids, _: bids.key_by("auction").update("out", 0, rise), plain(Highest, int)),
    Pair("latest", lambda bids, _: bids.key_by("auction").latest("out"), plain(Newest, Bid)),
    Pair("changes", lambda bids, _: bids.key_by("auction").changes("out"), plain(Differences, mw.Change[Bid])),
    Pair("deduplicate", lambda bids, _: bids.key_by("auction").deduplicate("out", KEPT), plain(First, Bid)),
    Pair(
        "until",
        lambda bids, _: bids.key_by("auction").until("out", lambda bid: bid.price > EXPENSIVE, keep=KEPT),
        plain(UpToExpensive, Bid),
    ),
    Pair(
        "count_window",
        lambda bids, _: (
            bids.key_by("auction").count_window(10).aggregate("out", Totals, bids=agg.count(), spent=agg.sum("price"))
        ),
        plain(Tens, Totals),
    ),
    Pair(
        "timeout",
        lambda bids, _: bids.key_by("auction").timeout("out", SILENCE, lambda bid: bid, Bid),
        plain(Silence, Bid),
    ),
    Pair(
        "ordered_by_time",
        lambda bids, _: bids.key_by("auction").ordered_by_time().update("out", 0, rise),
        plain(InOrder, int, late=mw.Late.DROP),
    ),
    Pair(
        "complete",
        lambda bids, _: bids.key_by("auction").complete("out", highest, Bid),
        plain(Groups, Bid, late=mw.Late.DROP),
    ),
    Pair("enrich", lambda bids, _: bids.key_by("auction").enrich("out", look_up, int), plain(Enriched, int)),
    Pair(
        "sample",
        lambda bids, _: bids.sample(SAMPLED, "bidder").key_by("auction").aggregate("out", Counted, bids=agg.count()),
        plain(Sampled, Counted),
    ),
    Pair(
        "filter",
        lambda bids, _: bids.filter(lambda bid: bid.price % 3 != 0).key_by("auction").update("out", 0, _sum),
        plain(Filtered, int),
    ),
    Pair(
        "map",
        lambda bids, _: (
            bids.filter(lambda bid: bid.price % 3 != 0)
            .map(lambda bid: Cheap(bid.auction, bid.price * 908 // 1_000), Cheap)
            .key_by("auction")
            .update("out", 0, in_total)
        ),
        plain(Chained, int),
    ),
    Pair(
        "flat_map",
        lambda bids, _: (
            bids.filter(lambda bid: bid.price % 3 != 0)
            .map(lambda bid: f"{bid.channel} {bid.auction}", str)
            .flat_map(str.split, str)
            .named("out")
        ),
        plain(Words, str, key=mw.key(spread)),
    ),
)
