"""A topology that writes orders to files of Parquet, in the folder that the environment names."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

import millwheel as mw
from millwheel import agg, connectors, windows


class Order(msgspec.Struct, rename={"customer": "user"}):
    customer: str
    number: int


class Large(msgspec.Struct):
    customer: str
    double: int


_LAKE = Path(os.environ.get("MILLWHEEL_TEST_LAKE", "/nowhere"))

lake = mw.Topology("lake")
orders = lake.source("orders", Order)
orders.to("all", connectors.write_files(_LAKE / "all", Order, format="parquet"), batch_records=700)
large = orders.filter(mw.col("number") >= 1_000).select(Large, double=mw.col("number") * 2)
large.to("large", connectors.write_files(_LAKE / "large", Large, format="parquet"))
orders.key_by(mw.everything).window(windows.tumbling(mw.hours(1))).aggregate("counts", orders=agg.count())
