"""Nexmark's queries against DuckDB over the same events, with the events shuffled, a crash and splits (G1, G7)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import duckdb
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


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return list(generate(EVENTS, 7, EVERY))


@pytest.fixture(scope="module")
def tables(events: list[Event]) -> Iterator[duckdb.DuckDBPyConnection]:
    """The events in tables."""
    with duckdb.connect() as database:
        for kind in (Person, Auction, Bid):
            rows = [msgspec.structs.astuple(one) for one in events if isinstance(one, kind)]
            types = ["BIGINT" if isinstance(value, int) else "VARCHAR" for value in rows[0]]
            names = ["moment" if name == "at" else name for name in kind.__struct_fields__]  # AT is a word of SQL
            columns = ", ".join(f"{name} {type_}" for name, type_ in zip(names, types, strict=True))
            database.execute(f"CREATE TABLE {kind.__name__} ({columns})")
            database.executemany(f"INSERT INTO {kind.__name__} VALUES ({','.join('?' * len(types))})", rows)
        yield database


SQL = {
    "q0": "SELECT auction, bidder, price, channel, moment FROM Bid",
    "q1": "SELECT auction, bidder, price * 908 // 1000, channel, moment FROM Bid",
    "q2": "SELECT auction, price FROM Bid WHERE auction % 123 = 0",
    "q3": "SELECT P.name, P.city, P.state, A.id FROM Person P JOIN Auction A ON A.seller = P.id "
    "WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')",
    "q4": """SELECT category, count(*), sum(price) FROM (SELECT A.id, A.category, max(B.price) AS price
        FROM Auction A JOIN Bid B ON A.id = B.auction AND B.moment BETWEEN A.moment AND A.expires
        GROUP BY 1, 2) GROUP BY 1""",
    "q5": f"""WITH counts AS (SELECT auction, moment - moment % 2000000 - n * 2000000 AS start, count(*) AS bids
                        FROM Bid, range(5) AS slides(n) GROUP BY 1, 2)
        SELECT auction, start, start + {WINDOW}, bids FROM counts C
        WHERE bids = (SELECT max(bids) FROM counts D WHERE D.start = C.start)""",
    "q7": f"""SELECT moment - moment % {WINDOW} AS start, max(price) FROM Bid GROUP BY 1""",
    "q8": f"""SELECT DISTINCT P.id, P.name, P.moment - P.moment % {WINDOW} + {WINDOW} FROM Person P JOIN Auction A
        ON A.seller = P.id AND A.moment - A.moment % {WINDOW} = P.moment - P.moment % {WINDOW}""",
    "q18": "SELECT auction, bidder, max(moment) FROM Bid GROUP BY 1, 2",
    "q19": """SELECT auction, price FROM (SELECT auction, price, row_number() OVER
        (PARTITION BY auction ORDER BY price DESC, moment) AS place FROM Bid) WHERE place <= 10""",
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
    "q4": lambda found: [(row.category, row.sold, row.total) for row in newest(found, lambda row: row.category)],
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
def test_a_query_is_its_sql(name: str, events: list[Event], tables: duckdb.DuckDBPyConnection) -> None:
    expected = sorted(tables.execute(SQL[name]).fetchall())
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
