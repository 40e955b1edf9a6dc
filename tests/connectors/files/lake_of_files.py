"""A topology that reads files of Parquet, counts their rows, and writes them to files of Parquet.

A test submits a copy of this file. The folder is where the environment variable ``MILLWHEEL_TEST_LAKE`` says.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

import millwheel as mw
from millwheel import agg, connectors, windows


class Order(msgspec.Struct):
    customer: str
    number: int
    at: mw.Timestamp


class Large(msgspec.Struct):
    customer: str
    double: int


_PLACE = Path(os.environ.get("MILLWHEEL_TEST_LAKE", "/nowhere"))

lake = mw.Topology("lake")
orders = lake.source("orders", Order, connectors.read_files(_PLACE / "in" / "*.parquet", Order), timestamp="at")
orders.to("all", connectors.write_files(_PLACE / "all", Order, format="parquet"))
large = orders.filter(mw.col("number") >= 1_000).select(Large, double=mw.col("number") * 2)
large.to("large", connectors.write_files(_PLACE / "large", Large, format="parquet"))
orders.key_by("customer").window(windows.tumbling(mw.hours(1))).aggregate("counts", orders=agg.count())
