"""Nexmark's queries against SQL over the same events, with the events shuffled, a crash and splits (G1, G7)."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

import millwheel as mw
from examples.nexmark.events import Auction, Bid, Event, Person, generate
from examples.nexmark.queries import QUERIES, build
from millwheel.testing import TopologyHarness

EVENTS = 2_500
EVERY = mw.milliseconds(25)
WINDOW = mw.seconds(10)
Row = tuple[Any, ...]


def database(events: list[Event]) -> sqlite3.Connection:
    """The events in tables."""
    tables = sqlite3.connect(":memory:")
    for kind in (Person, Auction, Bid):
        fields = ", ".join(kind.__struct_fields__)
        tables.execute(f"CREATE TABLE {kind.__name__} ({fields})")
        rows = [msgspec.structs.astuple(one) for one in events if isinstance(one, kind)]
        tables.executemany(f"INSERT INTO {kind.__name__} VALUES ({','.join('?' * len(rows[0]))})", rows)
    return tables


SQL = {
    "q0": "SELECT auction, bidder, price, channel, at FROM Bid",
    "q1": "SELECT auction, bidder, price * 908 / 1000, channel, at FROM Bid",
    "q2": "SELECT auction, price FROM Bid WHERE auction % 123 = 0",
    "q3": "SELECT P.name, P.city, P.state, A.id FROM Person P JOIN Auction A ON A.seller = P.id "
    "WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')",
    "q5": f"""WITH slides AS (SELECT value AS n FROM json_each('[0,1,2,3,4]')),
        counts AS (SELECT auction, at - at % 2000000 - n * 2000000 AS start, count(*) AS bids
                   FROM Bid, slides GROUP BY 1, 2)
        SELECT auction, start, start + {WINDOW}, bids FROM counts C
        WHERE bids = (SELECT max(bids) FROM counts D WHERE D.start = C.start)""",
    "q7": f"""SELECT at - at % {WINDOW} AS start, max(price) FROM Bid GROUP BY 1""",
    "q8": f"""SELECT DISTINCT P.id, P.name, P.at - P.at % {WINDOW} + {WINDOW} FROM Person P JOIN Auction A
        ON A.seller = P.id AND A.at - A.at % {WINDOW} = P.at - P.at % {WINDOW}""",
    "q18": "SELECT auction, bidder, max(at) FROM Bid GROUP BY 1, 2",
    "q19": """SELECT auction, price FROM (SELECT auction, price, row_number() OVER
        (PARTITION BY auction ORDER BY price DESC, at) AS place FROM Bid) WHERE place <= 10""",
    "q20": "SELECT B.auction, B.bidder, B.price, A.seller FROM Bid B JOIN Auction A ON A.id = B.auction "
    "WHERE A.category = 10",
}


def newest(rows: list[Any], key: Callable[[Any], Any]) -> list[Any]:
    """The last row of each key."""
    return list({key(row): row for row in rows}.values())


SHAPES: dict[str, Callable[[list[Any]], list[Row]]] = {
    "q0": lambda found: [msgspec.structs.astuple(one) for one in found],
    "q1": lambda found: [msgspec.structs.astuple(one) for one in found],
    "q2": lambda found: [(one.auction, one.price) for one in found],
    "q3": lambda found: [(one.name, one.city, one.state, one.auction) for one in found],
    "q5": lambda found: [(int(one.key), one.start, one.end, one.value) for one in found],
    "q7": lambda found: [(one.start, one.value.price) for one in found],
    "q8": lambda found: [(one.person, one.name, one.end) for one in found],
    "q18": lambda found: [
        (r.auction, r.bidder, r.bid.at) for r in newest(found, lambda row: (row.auction, row.bidder))
    ],
    "q19": lambda found: [
        (row.auction, bid.price) for row in newest(found, lambda row: row.auction) for bid in row.bids
    ],
    "q20": lambda found: [(one.bid.auction, one.bid.bidder, one.bid.price, one.auction.seller) for one in found],
}


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_is_its_sql(name: str) -> None:
    events = list(generate(EVENTS, 7, EVERY))
    expected = sorted(database(events).execute(SQL[name]).fetchall())
    assert len(expected) > 1
    harness = TopologyHarness(build(name), split_at=["1020", "1060"])
    chance = Random(name)
    for begin in range(0, EVENTS, 100):
        part = events[begin : begin + 100]
        for event in chance.sample(part, len(part)):
            harness.send("events", event, timestamp=event.at)
        if begin == 700:
            harness.crash()
        harness.advance(part[-1].at)
    harness.advance(mw.Timestamp(events[-1].at + mw.hours(1)))
    assert sorted(SHAPES[name](harness.values(name))) == expected


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_takes_six_lines_at_most(name: str) -> None:
    body = inspect.getsource(QUERIES[name]).split('"""')[2].strip().splitlines()
    assert len(body) <= 6
