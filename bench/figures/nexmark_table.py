"""The table of Nexmark's queries beside other systems. Pure."""

from __future__ import annotations

from typing import Final

from bench.figures.cells import number, table
from bench.readings import Readings

__all__ = ["nexmark_table"]

_SYSTEMS: Final = (("millwheel-dev", "MillWheel"), ("bytewax", "Bytewax"), ("flink-sql", "Flink, SQL (a cold JVM)"))
_QUERIES: Final = (
    ("q0", "bids as they are"),
    ("q1", "prices in another currency"),
    ("q2", "bids in some auctions"),
    ("q3", "sellers nearby: an unbounded join"),
    ("q4", "average closing price of a category: a join and two aggregates"),
    ("q5", "auctions with the most bids: sliding windows"),
    ("q7", "highest bid: tumbling windows"),
    ("q8", "new sellers: a join in windows"),
    ("q9", "winning bids: a join and the best of each auction"),
    ("q11", "sessions of bidders"),
    ("q18", "last bid of each bidder and auction"),
    ("q19", "ten highest bids of each auction"),
    ("q20", "bids with their auctions: an unbounded join"),
)


def nexmark_table(found: Readings) -> str:
    """A line for each query that was measured. A dash: no right results within the limit."""
    lines = []
    for query, what in _QUERIES:
        names = [f"nexmark.{query}.{system}.records_per_core_s" for system, _ in _SYSTEMS]
        if any(name in found.figures for name in names):
            cells = (number(found.value(name)) if name in found.figures else "–" for name in names)
            lines.append((f"{query}: {what}", *cells))
    return table(("records/s a core", *(what for _, what in _SYSTEMS)), lines)
