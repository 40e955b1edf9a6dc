"""Programs that read the log of a stream: one version from its oldest record, the other from a time.

A test submits a copy of this file. ``REPLAYED_ADDRESS`` has the server, and ``REPLAYED_DB`` the database.
"""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, datetime
from functools import partial

import msgspec

import millwheel as mw
from millwheel import agg, connectors, windows

BEGIN = 1_767_571_200_000_000
"""2026-01-05."""
HOURS = 24
PER_HOUR = 60


class Sale(msgspec.Struct):
    item: str
    number: int


def counting(name: str, table: str, start: connectors.Start) -> mw.Topology:
    topology = mw.Topology(name)
    read = connectors.read_log("shop/sales", Sale, address=os.environ.get("REPLAYED_ADDRESS", ""), start=start)
    hours = topology.source("sales", Sale, read).key_by("item").window(windows.tumbling(mw.hours(1)))
    insert = f"INSERT INTO {table} (at, sales, largest) VALUES (:start, :sales, :largest)"
    database = partial(sqlite3.connect, os.environ.get("REPLAYED_DB", ""), timeout=20)
    counted = hours.aggregate("hours", sales=agg.count(), largest=agg.max("number"))
    counted.key_by("item").to("hours-table", connectors.database(database, insert))
    return topology


shop = mw.Topology("shop")
shop.source("sales", Sale, retention=mw.Retention(age=mw.days(1)))

first = counting("first", "old", "earliest")
second = counting("second", "new", datetime(2026, 1, 5, 12, tzinfo=UTC))
