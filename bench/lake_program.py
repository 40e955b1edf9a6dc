"""The topologies of ``bench.lakes``: sales go to files in the folder ``BENCH_LAKE``, some of them behind steps."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

import millwheel as mw
from millwheel import connectors

__all__ = ["Income", "Sale"]

_LAKE = os.environ.get("BENCH_LAKE", "/not/set")


class Sale(msgspec.Struct):
    """A record."""

    item: str
    cents: int
    weight: float
    note: str
    left: int | None = None


class Income(msgspec.Struct):
    """What a selection makes of a sale."""

    item: str
    euros: float
    note: str


def _lake(form: Literal["parquet", "jsonl"], chosen: bool) -> mw.Topology:
    name = f"{form}-chosen" if chosen else form
    topology = mw.Topology(name)
    sales = topology.source("sales", Sale)
    folder = f"{_LAKE}/{name}"
    batch_records, batch_delay = 20_000, mw.seconds(1)
    if chosen:
        income = sales.filter(mw.col("cents") >= 0).select(Income, euros=mw.col("cents") / 100)
        sink = connectors.write_files(folder, Income, format=form)
        income.to("lake", sink, batch_records=batch_records, batch_delay=batch_delay)
    else:
        lake = connectors.write_files(folder, Sale, format=form)
        sales.to("lake", lake, batch_records=batch_records, batch_delay=batch_delay)
    return topology


parquet = _lake("parquet", chosen=False)
parquet_chosen = _lake("parquet", chosen=True)
jsonl = _lake("jsonl", chosen=False)
