"""A program that reads numbers by itself, adds them up, and writes each one and the sums to SQLite.

A test submits a copy of this file. The database is where the environment variable ``COUNTED_DB`` says.
With ``COUNTED_ENDLESS`` no test sees the last number.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from functools import partial

import msgspec

import millwheel as mw
from millwheel import agg, connectors, windows
from millwheel.connectors import Read, Source, SplitReader, Splits

SPLITS = 8
NUMBERS = 600 if "COUNTED_ENDLESS" not in os.environ else 10**9
"""How many numbers each split has."""
BEGIN = 1_767_268_800_000_000
STEP = 10_000
WINDOW = mw.seconds(1)


class Number(msgspec.Struct):
    split: int
    number: int


class Numbers(Source[Number, int]):
    """Counts in each split, some numbers at a time."""

    async def splits(self) -> Splits:
        return Splits([f"{split * 31:02x}" for split in range(SPLITS)], final=True)

    async def open_reader(self, split: str, position: int | None) -> SplitReader[Number, int]:
        return NumberReader(int(split, 16) // 31, position or 0)


class NumberReader(SplitReader[Number, int]):
    def __init__(self, split: int, position: int) -> None:
        self.split = split
        self.position = position

    async def read(self) -> Read[Number, int]:
        await asyncio.sleep(0.05)
        first = self.position
        self.position = min(first + 7, NUMBERS)
        found = [(Number(self.split, one), mw.Timestamp(BEGIN + one * STEP)) for one in range(first, self.position)]
        return Read(found, self.position, ended=self.position == NUMBERS, behind=NUMBERS - self.position)


connect = partial(sqlite3.connect, os.environ.get("COUNTED_DB", "counted.db"), check_same_thread=False, timeout=20.0)
INSERT_NUMBER = "INSERT INTO numbers (split, number) VALUES (:split, :number)"
INSERT_SUM = "INSERT INTO sums (split, at, numbers) VALUES (:split, :start, :numbers)"

counted = mw.Topology("counted")
numbers = counted.source("numbers", Number, Numbers(), allowed_skew=mw.seconds(1))
numbers.key_by("split").to("numbers-table", connectors.database(connect, INSERT_NUMBER), shards=3, batch_records=50)
sums = numbers.key_by("split").window(windows.tumbling(WINDOW)).aggregate("sums", numbers=agg.count())
sums.to("sums-table", connectors.database(connect, INSERT_SUM))
