"""A program that reads files, and writes their records to Parquet files in folders of their hours.

A test submits a copy of this file. The folder is where the environment variable ``FILED_FOLDER`` says.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

import millwheel as mw
from millwheel import connectors

FILES = 8
LINES = 600
"""How many lines each file has."""
BEGIN = 1_767_268_800_000_000
STEP = int(mw.seconds(10))


class Number(msgspec.Struct):
    file: str
    number: int
    at: mw.Timestamp


folder = Path(os.environ.get("FILED_FOLDER", "/tmp"))
source = connectors.read_files(folder / "in" / "*", Number, format="jsonl", watch=True, file_field="file")
lake = connectors.write_files(folder / "out", Number, format="parquet", by_time="hour")

filed = mw.Topology("filed")
numbers = filed.source("numbers", Number, source, timestamp="at")
numbers.key_by("file").to("numbers-lake", lake, shards=3, batch_records=20)
