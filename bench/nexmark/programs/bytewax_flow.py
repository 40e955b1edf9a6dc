"""A query as a dataflow of Bytewax, from the file of events to a file of JSON lists.

Its clocks belong to keys. So what compares all auctions of a window (q5, q7) has one key.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from pathlib import Path
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.connectors.files import FileSink, FileSource
from bytewax.dataflow import Dataflow
from bytewax.operators import windowing

__all__ = ["flow"]

Event = dict[str, Any]
Row = list[Any]
Stream = Any

_job: dict[str, Any] = json.loads(os.environ["PEER_JOB"])
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEN, _TWO = timedelta(seconds=10), timedelta(seconds=2)
_SECOND = 1_000_000
_BID = ("auction", "bidder", "price", "channel", "url", "at", "extra")
_AUCTION = ("id", "item", "description", "initial_bid", "reserve", "category", "seller", "expires", "at", "extra")


def _moment(event: Event) -> datetime:
    return datetime.fromtimestamp(event["at"] / _SECOND, UTC)


_clock = windowing.EventClock(
    ts_getter=_moment,
    wait_for_system_duration=timedelta(milliseconds=_job["out_of_order_ms"]),
    # The events are of the past. By default it would look at each key without a pause, since each window is overdue.
    to_system_utc=lambda _: None,
)
_tumbling = windowing.TumblingWindower(length=_TEN, align_to=_EPOCH)
_sliding = windowing.SlidingWindower(length=_TEN, offset=_TWO, align_to=_EPOCH)
# A session ends by a gap of ten seconds. Bytewax joins what has exactly that gap.
_sessions = windowing.SessionWindower(gap=_TEN - timedelta(milliseconds=1))


def _only(kind: str, events: Stream) -> Stream:
    return op.filter(kind, events, lambda event: event["type"] == kind)


def _bid_row(bid: Event) -> Row:
    return [bid[name] for name in _BID]


def _q0(events: Stream) -> Stream:
    return op.map("rows", _only("Bid", events), _bid_row)


def _q1(events: Stream) -> Stream:
    return op.map("rows", _only("Bid", events), lambda bid: _bid_row({**bid, "price": bid["price"] * 908 // 1_000}))


def _q2(events: Stream) -> Stream:
    some = op.filter("some", _only("Bid", events), lambda bid: bid["auction"] % 123 == 0)
    return op.map("rows", some, lambda bid: [bid["auction"], bid["price"]])


def _joined(events: Stream, kind: str, of_one: str, of_many: str, row: Callable[[Event, Event], Row]) -> Stream:
    """Each event of one kind with those of the other kind that have its key."""

    def match(state: list[Any] | None, event: Event) -> tuple[list[Any], Iterable[Row]]:
        one, waiting = state or [None, []]
        if event["type"] == kind:
            return [event, []], [row(event, other) for other in waiting]
        if one is None:
            waiting.append(event)
            return [None, waiting], ()
        return [one, waiting], [row(one, event)]

    keyed = op.key_on("key", events, lambda event: str(event[of_one if event["type"] == kind else of_many]))
    return op.key_rm("rows", op.stateful_flat_map("join", keyed, match))


def _q3(events: Stream) -> Stream:
    def wanted(event: Event) -> bool:
        if event["type"] == "Person":
            return event["state"] in ("OR", "ID", "CA")
        return bool(event["type"] == "Auction" and event["category"] == 10)

    some = op.filter("some", events, wanted)
    row = lambda one, auction: [one["name"], one["city"], one["state"], auction["id"]]  # noqa: E731
    return _joined(some, "Person", "id", "seller", row)


def _offers(events: Stream) -> Stream:
    """Pairs of an auction and a bid that came in time, by auction."""
    some = op.filter("some", events, lambda event: event["type"] != "Person")
    pairs = _joined(some, "Auction", "id", "auction", lambda auction, bid: [auction, bid])
    timely = op.filter("timely", pairs, lambda pair: pair[0]["at"] <= pair[1]["at"] <= pair[0]["expires"])
    return op.key_on("auction", timely, lambda pair: str(pair[0]["id"]))


def _higher(best: Row | None, pair: Row) -> tuple[Row, Iterable[tuple[Row | None, Row]]]:
    """The best pair so far. A better one is given with the one before it."""
    if best is None or (pair[1]["price"], -pair[1]["at"]) > (best[1]["price"], -best[1]["at"]):
        return pair, [(best, pair)]
    return best, ()


def _q4(events: Stream) -> Stream:
    def closing(state: tuple[int, int] | None, change: tuple[Row | None, Row]) -> tuple[tuple[int, int], Row]:
        (sold, total), (former, new) = state or (0, 0), change
        sold, total = sold + (former is None), total + new[1]["price"] - (former[1]["price"] if former else 0)
        return (sold, total), [new[0]["category"], sold, total]

    changes = op.key_rm("changes", op.stateful_flat_map("highest", _offers(events), _higher))
    keyed = op.key_on("category", changes, lambda change: str(change[1][0]["category"]))
    return op.key_rm("rows-of-q4", op.stateful_map("closing", keyed, closing))


def _q5(events: Stream) -> Stream:
    def count(counts: Counter[int], bid: Event) -> Counter[int]:
        counts[bid["auction"]] += 1
        return counts

    def best(found: tuple[str, tuple[int, Counter[int]]]) -> list[Row]:
        window, counts = found[1]
        start, most = window * 2 * _SECOND, max(counts.values())
        return [[auction, start, start + 10 * _SECOND, most] for auction, bids in counts.items() if bids == most]

    bids = op.key_on("all", _only("Bid", events), lambda _: "all")
    merge: Callable[[Counter[int], Counter[int]], Counter[int]] = lambda one, other: one + other  # noqa: E731
    counts = windowing.fold_window("counts", bids, _clock, _sliding, Counter, count, merge)
    return op.flat_map("rows", counts.down, best)


def _q7(events: Stream) -> Stream:
    bids = op.key_on("all", _only("Bid", events), lambda _: "all")
    best = windowing.max_window("best", bids, _clock, _tumbling, by=lambda bid: bid["price"])
    return op.map("rows", best.down, lambda one: [one[1][1][name] for name in ("auction", "price", "bidder", "at")])


def _q8(events: Stream) -> Stream:
    people = op.key_on("person", _only("Person", events), lambda one: str(one["id"]))
    sold = op.key_on("seller", _only("Auction", events), lambda auction: str(auction["seller"]))
    both = windowing.join_window("both", _clock, _tumbling, people, sold)

    def row(found: tuple[str, tuple[int, tuple[Event | None, Event | None]]]) -> Row | None:
        one, auction = found[1][1]
        return [one["id"], one["name"]] if one and auction else None

    return op.filter_map("rows", both.down, row)


def _q9(events: Stream) -> Stream:
    better = op.key_rm("better", op.stateful_flat_map("highest", _offers(events), _higher))

    def row(change: tuple[Row | None, Row]) -> Row:
        auction, bid = change[1]
        of_auction = [auction[name] for name in ("id", "item", "seller", "category")]
        return [*of_auction, *(bid[name] for name in ("bidder", "price", "at"))]

    return op.map("rows-of-q9", better, row)


def _q11(events: Stream) -> Stream:
    def add(session: Row, bid: Event) -> Row:
        return merge(session, [bid["bidder"], bid["at"], bid["at"], 1])

    def merge(one: Row, other: Row) -> Row:
        if not one:
            return other
        return [one[0], min(one[1], other[1]), max(one[2], other[2]), one[3] + other[3]]

    bids = op.key_on("bidder", _only("Bid", events), lambda bid: str(bid["bidder"]))
    counts = windowing.fold_window("counts", bids, _clock, _sessions, list, add, merge)

    def row(found: tuple[str, tuple[int, Row]]) -> Row:
        bidder, first, last, bids = found[1][1]
        return [bidder, first, last + 10 * _SECOND, bids]

    return op.map("rows", counts.down, row)


def _q18(events: Stream) -> Stream:
    bids = op.key_on("pair", _only("Bid", events), lambda bid: f"{bid['auction']} {bid['bidder']}")

    def newer(last: Event | None, bid: Event) -> tuple[Event, Iterable[Row]]:
        return (bid, [_bid_row(bid)]) if last is None or bid["at"] >= last["at"] else (last, ())

    return op.key_rm("rows", op.stateful_flat_map("last", bids, newer))


def _q19(events: Stream) -> Stream:
    bids = op.key_on("auction", _only("Bid", events), lambda bid: str(bid["auction"]))

    def best(top: list[Row] | None, bid: Event) -> tuple[list[Row], Iterable[Row]]:
        former = top or []
        new = nlargest(10, [*former, _bid_row(bid)], key=lambda row: row[2])
        return (former, ()) if new == former else (new, [[bid["auction"], new]])

    return op.key_rm("rows", op.stateful_flat_map("best", bids, best))


def _q20(events: Stream) -> Stream:
    def row(auction: Event, bid: Event) -> Row:
        return [*_bid_row(bid), *(auction[name] for name in _AUCTION)]

    some = op.filter("some", events, lambda event: event["type"] != "Person")
    # Filtered behind the join: before it, the bids in other auctions would wait for ever.
    category = len(_BID) + _AUCTION.index("category")
    return op.filter("tens", _joined(some, "Auction", "id", "auction", row), lambda found: found[category] == 10)


_QUERIES: dict[str, Callable[[Stream], Stream]] = {
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

flow = Dataflow("nexmark")
_lines = op.input("lines", flow, FileSource(_job["source"]))
_rows = _QUERIES[_job["query"]](op.map("events", _lines, orjson.loads))
_written = op.map("written", _rows, lambda row: ("", orjson.dumps(row).decode()))
op.output("results", _written, FileSink(Path(_job["target"]) / "rows.jsonl"))
