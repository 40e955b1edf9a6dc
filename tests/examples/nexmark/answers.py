"""What the queries should produce: SQL, run by DuckDB over the same events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import duckdb
import msgspec

import millwheel as mw
from examples.nexmark.events import SIDE_INPUT, Auction, Bid, Event, Person

__all__ = ["SHAPES", "SIDE", "SQL", "Row", "answer", "database_of", "fill"]

WINDOW: Final = mw.seconds(10)
DAY: Final = mw.hours(24)
SIDE: Final = SIDE_INPUT[1_000:1_300]
"""The rows of the side input that auctions have."""
Row = tuple[Any, ...]
_astuple = msgspec.structs.astuple


@contextmanager
def database_of(events: list[Event]) -> Iterator[duckdb.DuckDBPyConnection]:
    """The events in tables."""
    with duckdb.connect() as database:
        for kind in (Person, Auction, Bid):
            # AT is a word of SQL.
            names = ["moment" if name == "at" else name for name in kind.__struct_fields__]
            fill(database, kind.__name__, names, [_astuple(one) for one in events if isinstance(one, kind)])
        fill(database, "Side", ["key", "value"], [(side.key, side.value) for side in SIDE])
        yield database


def fill(database: duckdb.DuckDBPyConnection, table: str, names: list[str], rows: list[Row]) -> None:
    """Create a table with some rows."""
    types = ["BIGINT" if isinstance(value, int) else "VARCHAR" for value in rows[0]]
    columns = ", ".join(f"{name} {type_}" for name, type_ in zip(names, types, strict=True))
    database.execute(f"CREATE TABLE {table} ({columns})")
    for first in range(0, len(rows), 500):  # a statement for each row takes a hundred times as long
        some = rows[first : first + 500]
        places = ",".join([f"({','.join('?' * len(names))})"] * len(some))
        database.execute(f"INSERT INTO {table} VALUES {places}", [value for row in some for value in row])


def answer(database: duckdb.DuckDBPyConnection, name: str) -> list[Row]:
    """The sorted rows of a query."""
    return sorted(database.execute(SQL[name]).fetchall())


_RANKS: Final = ("TRUE", "price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")


def _ranks(what: str) -> str:
    return ", ".join(f"count({what}) FILTER (WHERE {rank})" for rank in _RANKS)


_STATISTICS: Final = ", ".join([_ranks("*"), _ranks("DISTINCT bidder"), _ranks("DISTINCT auction")])
_ID: Final = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"

SQL: Final = {
    "q0": "SELECT auction, bidder, price, channel, url, moment, extra FROM Bid",
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
    "q9": """SELECT id, item, seller, category, bidder, price, bid_moment FROM (SELECT A.*, B.bidder, B.price,
        B.moment AS bid_moment, row_number() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.moment) AS place
        FROM Auction A JOIN Bid B ON A.id = B.auction AND B.moment BETWEEN A.moment AND A.expires) WHERE place = 1""",
    "q11": f"""WITH steps AS (SELECT bidder, moment,
            CASE WHEN moment < lag(moment) OVER one + {WINDOW} THEN 0 ELSE 1 END AS first FROM Bid
            WINDOW one AS (PARTITION BY bidder ORDER BY moment)),
        numbered AS (SELECT bidder, moment, sum(first) OVER (PARTITION BY bidder ORDER BY moment) AS session FROM steps)
        SELECT bidder, min(moment), max(moment) + {WINDOW}, count(*) FROM numbered GROUP BY bidder, session""",
    "q12": f"SELECT bidder, clock - clock % {WINDOW} AS start, start + {WINDOW}, count(*) FROM Arrival GROUP BY 1, 2",
    "q13": "SELECT B.auction, B.bidder, B.price, B.moment, S.value FROM Bid B JOIN Side S ON B.auction % 10000 = S.key",
    "q14": """SELECT auction, bidder, price * 908, CASE WHEN hour(make_timestamp(moment)) BETWEEN 8 AND 18 THEN 'day'
        WHEN hour(make_timestamp(moment)) <= 6 OR hour(make_timestamp(moment)) >= 20 THEN 'night' ELSE 'other' END,
        moment, extra, len(extra) - len(replace(extra, 'c', '')) FROM Bid
        WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT moment - moment % {DAY} AS start, {_STATISTICS} FROM Bid GROUP BY 1",
    "q16": f"""SELECT channel, max(strftime(make_timestamp(moment), '%H:%M')), moment - moment % {DAY} AS start,
        {_STATISTICS} FROM Bid GROUP BY 1, 3""",
    "q17": f"""SELECT auction, moment - moment % {DAY} AS start, {_ranks("*")}, min(price), max(price), avg(price),
        sum(price) FROM Bid GROUP BY 1, 2""",
    "q18": "SELECT auction, bidder, max(moment) FROM Bid GROUP BY 1, 2",
    "q19": """SELECT auction, price FROM (SELECT auction, price, row_number() OVER
        (PARTITION BY auction ORDER BY price DESC, moment) AS place FROM Bid) WHERE place <= 10""",
    "q20": "SELECT B.auction, B.bidder, B.price, A.seller FROM Bid B JOIN Auction A ON A.id = B.auction "
    "WHERE A.category = 10",
    "q21": f"""SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
        WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE {_ID} END FROM Bid
        WHERE {_ID} <> '' OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """SELECT auction, bidder, price, channel, split_part(url, '/', 4), split_part(url, '/', 5),
        split_part(url, '/', 6) FROM Bid""",
}


def _newest(rows: list[Any], key: Callable[[Any], Any]) -> list[Any]:
    """The last row of each key."""
    return list({key(row): row for row in rows}.values())


def _of_bid(bid: Bid) -> Row:
    return bid.auction, bid.bidder, bid.price, bid.channel


SHAPES: Final[dict[str, Callable[[list[Any]], list[Row]]]] = {
    "q0": lambda found: [_astuple(one) for one in found],
    "q1": lambda found: [(*_of_bid(one), one.at) for one in found],
    "q2": lambda found: [_astuple(one) for one in found],
    "q3": lambda found: [_astuple(one) for one in found],
    "q4": lambda found: [_astuple(row) for row in _newest(found, lambda row: row.category)],
    "q5": lambda found: [(int(one.key), one.start, one.end, one.value) for one in found],
    "q7": lambda found: [(one.start, one.value.price) for one in found],
    "q8": lambda found: [_astuple(one) for one in found],
    "q9": lambda found: [
        (one.id, one.item, one.seller, one.category, bid.bidder, bid.price, bid.at)
        for row in _newest(found, lambda row: row.offer.auction.id)
        for one, bid in [(row.offer.auction, row.offer.bid)]
    ],
    "q11": lambda found: [(int(one.key), one.start, one.end, one.value) for one in found],
    "q12": lambda found: [(one.bidder, one.start, one.end, one.bids) for one in found],
    "q13": lambda found: [(r.bid.auction, r.bid.bidder, r.bid.price, r.bid.at, r.value) for r in found],
    "q14": lambda found: [
        (r.bid.auction, r.bid.bidder, r.price, r.time_of_day, r.bid.at, r.bid.extra, r.letters_c) for r in found
    ],
    "q15": lambda found: [_astuple(one) for one in found],
    "q16": lambda found: [(one.channel, one.minute, *_astuple(one)[:13]) for one in found],
    "q17": lambda found: [_astuple(one) for one in found],
    "q18": lambda found: [
        (r.auction, r.bidder, r.bid.at) for r in _newest(found, lambda row: (row.auction, row.bidder))
    ],
    "q19": lambda found: [
        (row.auction, bid.price) for row in _newest(found, lambda row: row.auction) for bid in row.bids
    ],
    "q20": lambda found: [(one.bid.auction, one.bid.bidder, one.bid.price, one.auction.seller) for one in found],
    "q21": lambda found: [(*_of_bid(one.bid), one.id) for one in found],
    "q22": lambda found: [(*_of_bid(one.bid), one.first, one.second, one.third) for one in found],
}
"""The rows of a query, from the values that it has produced."""
