"""Windows, by the library and by hand."""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

import msgspec

import millwheel as mw
from bench.operators.records import SECOND, Bid, Pair, plain
from millwheel import agg, windows
from millwheel.streams import WindowedStream
from millwheel.windows import Result

__all__ = ["PAIRS"]

SIZE: Final = mw.seconds(5)
GAP: Final = mw.milliseconds(300)
SHARDS: Final = 8


class Stats(msgspec.Struct, frozen=True):
    """The bids of an auction in a window."""

    auction: int
    start: mw.Timestamp
    end: mw.Timestamp
    bids: int
    spent: int
    highest: int


class Sums(msgspec.Struct, array_like=True):
    """A window that has not ended."""

    bids: int = 0
    spent: int = 0
    highest: int = 0


def _result(key: str, start: int, end: int, value: int, revision: int = 0) -> Result[int]:
    return Result(key, mw.Timestamp(start), mw.Timestamp(end), value, revision)


class Tumbling(mw.Computation[Bid, dict[int, int]]):
    """Counts by window."""

    def process_record(self, ctx: mw.Context[dict[int, int]], record: mw.Record[Bid]) -> None:
        """Count the record."""
        end = record.timestamp - record.timestamp % SIZE + SIZE
        counts = ctx.state
        if end in counts:
            counts[end] += 1
        elif end > ctx.watermark:
            counts[end] = 1
            ctx.set_timer(mw.Timestamp(end), str(end))
        else:
            _drop(ctx)

    def process_timer(self, ctx: mw.Context[dict[int, int]], timer: mw.Timer) -> None:
        """Produce the count."""
        end = timer.timestamp
        ctx.produce("out", _result(ctx.key, end - SIZE, end, ctx.state.pop(end)))


class Sliding(mw.Computation[Bid, dict[int, int]]):
    """Counts by sliding window."""

    def process_record(self, ctx: mw.Context[dict[int, int]], record: mw.Record[Bid]) -> None:
        """Count the record in all of its windows."""
        first = record.timestamp - record.timestamp % SECOND + SECOND
        counts, taken = ctx.state, False
        for end in range(first, first + SIZE, SECOND):
            if end in counts:
                counts[end] += 1
                taken = True
            elif end > ctx.watermark:
                counts[end] = 1
                ctx.set_timer(mw.Timestamp(end), str(end))
                taken = True
        if not taken:
            _drop(ctx)

    def process_timer(self, ctx: mw.Context[dict[int, int]], timer: mw.Timer) -> None:
        """Produce the count."""
        end = timer.timestamp
        ctx.produce("out", _result(ctx.key, end - SIZE, end, ctx.state.pop(end)))


class Sessions(mw.Computation[Bid, dict[int, tuple[int, int]]]):
    """Sums by session. The state is (end, sum) by start."""

    def process_record(self, ctx: mw.Context[dict[int, tuple[int, int]]], record: mw.Record[Bid]) -> None:
        """Add the record to its session."""
        start, end, spent = int(record.timestamp), record.timestamp + GAP, record.value.price
        sessions = ctx.state
        joined = [begin for begin, (until, _) in sessions.items() if begin < end and start < until]
        if not joined and end <= ctx.watermark:
            _drop(ctx)
            return
        for begin in joined:
            until, other = sessions.pop(begin)
            ctx.cancel_timer(str(begin))
            start, end, spent = min(start, begin), max(end, until), spent + other
        sessions[start] = end, spent
        ctx.set_timer(mw.Timestamp(end), str(start))

    def process_timer(self, ctx: mw.Context[dict[int, tuple[int, int]]], timer: mw.Timer) -> None:
        """Produce the sum."""
        start = int(timer.tag)
        end, spent = ctx.state.pop(start)
        ctx.produce("out", _result(ctx.key, start, end, spent))


class Several(mw.Computation[Bid, dict[int, Sums]]):
    """Three aggregates by window."""

    def process_record(self, ctx: mw.Context[dict[int, Sums]], record: mw.Record[Bid]) -> None:
        """Add the record."""
        end = record.timestamp - record.timestamp % SIZE + SIZE
        sums = ctx.state.get(end)
        if sums is None:
            if end <= ctx.watermark:
                _drop(ctx)
                return
            sums = ctx.state[end] = Sums()
            ctx.set_timer(mw.Timestamp(end), str(end))
        price = record.value.price
        sums.bids += 1
        sums.spent += price
        sums.highest = max(sums.highest, price)

    def process_timer(self, ctx: mw.Context[dict[int, Sums]], timer: mw.Timer) -> None:
        """Produce the row."""
        end = timer.timestamp
        sums, start = ctx.state.pop(end), mw.Timestamp(end - SIZE)
        ctx.produce("out", Stats(int(ctx.key), start, end, sums.bids, sums.spent, sums.highest))


class EachChange(mw.Computation[Bid, dict[int, tuple[int, int]]]):
    """A result after each record. The state is (count, revision) by end."""

    def process_record(self, ctx: mw.Context[dict[int, tuple[int, int]]], record: mw.Record[Bid]) -> None:
        """Count the record, and produce the count."""
        end = record.timestamp - record.timestamp % SIZE + SIZE
        known = ctx.state.get(end)
        if known is None:
            if end <= ctx.watermark:
                _drop(ctx)
                return
            ctx.set_timer(mw.Timestamp(end), str(end))
        count, revision = known or (0, -1)
        ctx.state[end] = count + 1, revision + 1
        ctx.produce("out", _result(ctx.key, end - SIZE, end, count + 1, revision + 1), timestamp=mw.Timestamp(end))

    def process_timer(self, ctx: mw.Context[dict[int, tuple[int, int]]], timer: mw.Timer) -> None:
        """Produce the last count."""
        end = timer.timestamp
        count, revision = ctx.state.pop(end)
        ctx.produce("out", _result(ctx.key, end - SIZE, end, count, revision + 1))


class Early(mw.Computation[Bid, dict[int, tuple[int, int, bool]]]):
    """A result each second of the clock. The state is (count, revision, whether a timer is set) by end."""

    def process_record(self, ctx: mw.Context[dict[int, tuple[int, int, bool]]], record: mw.Record[Bid]) -> None:
        """Count the record."""
        end = record.timestamp - record.timestamp % SIZE + SIZE
        known = ctx.state.get(end)
        if known is None:
            if end <= ctx.watermark:
                _drop(ctx)
                return
            ctx.set_timer(mw.Timestamp(end), str(end))
        count, revision, waits = known or (0, -1, False)
        ctx.state[end] = count + 1, revision, True
        if not waits:
            at, hold = mw.Timestamp(ctx.now + SECOND), mw.Timestamp(end)
            ctx.set_timer(at, str(end), domain=mw.TimeDomain.PROCESSING_TIME, hold=hold)

    def process_timer(self, ctx: mw.Context[dict[int, tuple[int, int, bool]]], timer: mw.Timer) -> None:
        """Produce the count."""
        end = int(timer.tag)
        count, revision, waits = ctx.state.pop(end)
        ctx.produce("out", _result(ctx.key, end - SIZE, end, count, revision + 1), timestamp=mw.Timestamp(end))
        if timer.domain is mw.TimeDomain.PROCESSING_TIME:
            ctx.state[end] = count, revision + 1, False
        elif waits:
            ctx.cancel_timer(timer.tag, domain=mw.TimeDomain.PROCESSING_TIME)


class Partial(mw.Computation[Bid, dict[int, int]]):
    """The first phase of a sum: by shard."""

    def process_record(self, ctx: mw.Context[dict[int, int]], record: mw.Record[Bid]) -> None:
        """Add the record."""
        end = record.timestamp - record.timestamp % SIZE + SIZE
        sums = ctx.state
        if end in sums:
            sums[end] += record.value.price
        elif end > ctx.watermark:
            sums[end] = record.value.price
            ctx.set_timer(mw.Timestamp(end), str(end))
        else:
            _drop(ctx)

    def process_timer(self, ctx: mw.Context[dict[int, int]], timer: mw.Timer) -> None:
        """Produce the sum of the shard."""
        end = timer.timestamp
        ctx.produce("parts", _result(ctx.key, end - SIZE, end, ctx.state.pop(end)))


class Merge(mw.Computation[Result[int], dict[int, int]]):
    """The second phase: by key."""

    def process_record(self, ctx: mw.Context[dict[int, int]], record: mw.Record[Result[int]]) -> None:
        """Add the sum of a shard."""
        part = record.value
        ctx.state[part.end] = ctx.state.get(part.end, 0) + part.value
        ctx.set_timer(mw.Timestamp(part.end + 1), str(part.end), hold=part.end)

    def process_timer(self, ctx: mw.Context[dict[int, int]], timer: mw.Timer) -> None:
        """Produce the sum."""
        end = int(timer.tag)
        ctx.produce("out", _result(ctx.key, end - SIZE, end, ctx.state.pop(end)), timestamp=mw.Timestamp(end))


def _drop(ctx: mw.Context[Any]) -> None:
    """Drop a record that is too late, and leave no state."""
    if not ctx.state:
        del ctx.state
    ctx.count_dropped()


def _window(bids: mw.Stream[Bid], of: windows.Assigner | windows.SessionWindows) -> WindowedStream[Bid]:
    return bids.key_by("auction").window(of)


def _phases(topology: mw.Topology) -> None:
    shard = mw.key(lambda bid: f"{crc32(bid.bidder.to_bytes(4)) % SHARDS}|{bid.auction}")
    topology.add(Partial, name="part", inputs={"bids": shard}, outputs={"parts": Result[int]})
    whole = mw.key(lambda part: part.key.partition("|")[2])
    topology.add(Merge, name="out", inputs={"parts": whole}, outputs={"out": Result[int]})


FIVE: Final = windows.tumbling(SIZE)
PAIRS: Final = (
    Pair("tumbling", lambda bids, _: _window(bids, FIVE).aggregate("out", agg.count()), plain(Tumbling, Result[int])),
    Pair(
        "sliding",
        lambda bids, _: _window(bids, windows.sliding(SIZE, SECOND)).aggregate("out", agg.count()),
        plain(Sliding, Result[int]),
    ),
    Pair(
        "session",
        lambda bids, _: _window(bids, windows.session(GAP)).aggregate("out", agg.sum("price")),
        plain(Sessions, Result[int]),
    ),
    Pair(
        "several",
        lambda bids, _: _window(bids, FIVE).aggregate(
            "out", Stats, bids=agg.count(), spent=agg.sum("price"), highest=agg.max("price")
        ),
        plain(Several, Stats),
    ),
    Pair(
        "each_change",
        lambda bids, _: _window(bids, FIVE).aggregate("out", agg.count(), early=windows.each_change()),
        plain(EachChange, Result[int]),
    ),
    Pair(
        "early",
        lambda bids, _: _window(bids, FIVE).aggregate("out", agg.count(), early=windows.every(SECOND)),
        plain(Early, Result[int]),
    ),
    Pair("spread", lambda bids, _: _window(bids, FIVE).aggregate("out", agg.sum("price"), spread=SHARDS), _phases),
)
