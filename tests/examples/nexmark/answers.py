"""The expected results of the queries. DuckDB computes them by SQL over the same events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import duckdb
import msgspec

import millwheel as mw
from examples.nexmark.events import SIDE_INPUT, Auction, Bid, Event, Person

WINDOW: Final = mw.seconds(10)
DAY: Final = mw.hours(24)
SIDE: Final = SIDE_INPUT[1_000:1_300]
"""The rows of the side input for auctions."""
Row = tuple[Any, ...]
_astuple = msgspec.structs.astuple


@contextmanager
def database_of(events: list[Event]) -> Iterator[duckdb.DuckDBPyConnection]:
    """The events as tables."""
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
    for first in range(0, len(rows), 500):  # a hundred times as fast as one statement for each row
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


def _of_bid(bid: Bid) -> Row:
    return bid.auction, bid.bidder, bid.price, bid.channel


_SHAPES: Final[dict[str, Callable[[Any], Row]]] = {
    "q1": lambda one: (*_of_bid(one), one.at),
    "q5": lambda one: (int(one.key), one.start, one.end, one.value),
    "q7": lambda one: (one.start, one.value.price),
    "q9": lambda one: (
        *(getattr(one.offer.auction, name) for name in ("id", "item", "seller", "category")),
        *(getattr(one.offer.bid, name) for name in ("bidder", "price", "at")),
    ),
    "q11": lambda one: (int(one.key), one.start, one.end, one.value),
    "q12": lambda one: (one.bidder, one.start, one.end, one.bids),
    "q13": lambda one: (*_of_bid(one.bid)[:3], one.bid.at, one.value),
    "q14": lambda one: (*_of_bid(one.bid)[:2], one.price, one.time_of_day, one.bid.at, one.bid.extra, one.letters_c),
    "q16": lambda one: (one.channel, one.minute, *_astuple(one)[:13]),
    "q18": lambda one: (one.auction, one.bidder, one.bid.at),
    "q20": lambda one: (*_of_bid(one.bid)[:3], one.auction.seller),
    "q21": lambda one: (*_of_bid(one.bid), one.id),
    "q22": lambda one: (*_of_bid(one.bid), one.first, one.second, one.third),
}
"""The row of a value, by query, where the row is not just the value's fields."""

_NEWEST: Final[dict[str, Callable[[Any], object]]] = {
    "q4": lambda one: one.category,
    "q9": lambda one: one.offer.auction.id,
    "q18": lambda one: (one.auction, one.bidder),
    "q19": lambda one: one.auction,
}
"""The key of a value, by query, where only the last value of each key counts."""


def rows_of(name: str, results: Iterable[tuple[Any, int]]) -> list[Row]:
    """The sorted rows of a query, from the values and timestamps that it has produced."""
    if name == "q8":
        return sorted((one.person, one.name, end) for one, end in results)
    found = [value for value, _ in results]
    if name in _NEWEST:
        found = list({_NEWEST[name](one): one for one in found}.values())
    if name == "q19":
        return sorted((one.auction, bid.price) for one in found for bid in one.bids)
    return sorted(map(_SHAPES.get(name, _astuple), found))
