"""The topologies of ``bench.parquet``: counts and sums of each key and second, of the files in ``PARQUET_FOLDER``.

``tables`` names the field of the times, so its reads are columns. ``rows`` has a function, which needs values.
"""

from __future__ import annotations

import os

import msgspec

import millwheel as mw
from millwheel import agg, connectors, windows

__all__ = ["SIZE", "Bid", "Second", "rows", "tables"]

SIZE = mw.seconds(10)
_FOLDER = os.environ.get("PARQUET_FOLDER", "/not/set")


class Bid(msgspec.Struct):
    """A row."""

    key: str
    price: int
    at: mw.Timestamp
    text: str


class Second(msgspec.Struct):
    """A result."""

    key: str
    start: mw.Timestamp
    n: int
    sum: int


def _time_of(bid: Bid) -> mw.Timestamp:
    return bid.at


def _counted(name: str, topology: mw.Topology) -> mw.Topology:
    source = connectors.read_files(f"{_FOLDER}/*.parquet", Bid)
    timestamp = "at" if name == "tables" else _time_of
    bids = topology.source("bids", Bid, source, timestamp=timestamp, out_of_order=mw.seconds(1))
    seconds = bids.key_by("key").window(windows.tumbling(SIZE))
    seconds.aggregate("seconds", Second, n=agg.count(), sum=agg.sum("price"))
    topology.stream("seconds", Second, retention=mw.Retention(age=mw.days(1)))
    return topology


tables = _counted("tables", mw.Topology("tables"))
rows = _counted("rows", mw.Topology("rows"))
