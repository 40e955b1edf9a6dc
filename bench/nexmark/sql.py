"""The queries in Flink's SQL, as the benchmark publishes them: https://github.com/nexmark/nexmark.

Three things differ. Columns have the names of the events here. q4 gives the number and the sum of the prices, of which
the average follows. A gap of q11 is a millisecond shorter, because Flink joins sessions that touch.
"""

from __future__ import annotations

from typing import Final

__all__ = ["SQL"]

_BID: Final = "auction, bidder, price, channel, url, `at`, extra"
_START: Final = "CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', {}) AS BIGINT) * 1000000"
_HOP: Final = "TABLE(HOP(TABLE bid, DESCRIPTOR(moment), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"
_TUMBLE: Final = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(moment), INTERVAL '10' SECOND))"
_SESSION: Final = "TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(moment), INTERVAL '9.999' SECOND))"
_TIMELY: Final = "auction AS A JOIN bid AS B ON A.id = B.auction AND B.`at` BETWEEN A.`at` AND A.expires"

SQL: Final = {
    "q0": f"SELECT {_BID} FROM bid",
    "q1": "SELECT auction, bidder, price * 908 / 1000 AS price, channel, url, `at`, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """SELECT P.name, P.city, P.state, A.id FROM auction AS A JOIN person AS P ON A.seller = P.id
        WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')""",
    "q4": f"""SELECT category, COUNT(*) AS sold, SUM(price) AS total FROM (
            SELECT A.id, A.category, MAX(B.price) AS price FROM {_TIMELY} GROUP BY A.id, A.category)
        GROUP BY category""",
    "q5": f"""SELECT AuctionBids.auction, {_START.format("AuctionBids.starttime")} AS starttime,
            {_START.format("AuctionBids.endtime")} AS endtime, AuctionBids.num
        FROM (SELECT auction, COUNT(*) AS num, window_start AS starttime, window_end AS endtime
            FROM {_HOP} GROUP BY auction, window_start, window_end) AS AuctionBids
        JOIN (SELECT MAX(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime
            FROM (SELECT COUNT(*) AS num, window_start AS starttime, window_end AS endtime
                FROM {_HOP} GROUP BY auction, window_start, window_end) AS CountBids
            GROUP BY CountBids.starttime, CountBids.endtime) AS MaxBids
        ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime
            AND AuctionBids.num >= MaxBids.maxn""",
    "q7": f"""SELECT B.auction, B.price, B.bidder, B.`at` FROM bid AS B
        JOIN (SELECT MAX(price) AS maxprice, window_end AS endtime
            FROM {_TUMBLE.format("bid")} GROUP BY window_start, window_end) AS B1 ON B.price = B1.maxprice
        WHERE B.moment BETWEEN B1.endtime - INTERVAL '10' SECOND AND B1.endtime""",
    "q8": f"""SELECT P.id, P.name
        FROM (SELECT id, name, window_start AS starttime, window_end AS endtime
            FROM {_TUMBLE.format("person")} GROUP BY id, name, window_start, window_end) AS P
        JOIN (SELECT seller, window_start AS starttime, window_end AS endtime
            FROM {_TUMBLE.format("auction")} GROUP BY seller, window_start, window_end) AS A
        ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime""",
    "q9": f"""SELECT id, item, seller, category, bidder, price, `at` FROM (
            SELECT A.id, A.item, A.seller, A.category, B.bidder, B.price, B.`at`,
                ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.`at` ASC) AS rownum FROM {_TIMELY})
        WHERE rownum <= 1""",
    "q11": f"""SELECT bidder, MIN(`at`) AS starttime, MAX(`at`) + 10000000 AS endtime, COUNT(*) AS bids
        FROM {_SESSION} GROUP BY bidder, window_start, window_end""",
    "q18": f"""SELECT {_BID} FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY moment DESC) AS rank_number FROM bid)
        WHERE rank_number <= 1""",
    "q19": f"""SELECT {_BID}, rank_number FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number FROM bid)
        WHERE rank_number <= 10""",
    "q20": """SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.`at` AS bid_at, B.extra AS bid_extra,
            A.id, A.item, A.description, A.initial_bid, A.reserve, A.category, A.seller, A.expires, A.`at`, A.extra
        FROM bid AS B JOIN auction AS A ON B.auction = A.id WHERE A.category = 10""",
}
"""By query. Each reads the views person, auction and bid."""
