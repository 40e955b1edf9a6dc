"""Tables from an injector to files, exactly once: `python -m bench.lakes [--records N] [--runs N] [--forms F ...]`.

Each run has a fresh development server, and sends a table in parts from this process. What counts is the processor time
of the server and the rate, from the first part until all rows are in files. A run fails if a row is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil

from bench.server import ServerProcess, submit
from millwheel.client.injector import Injector

__all__ = ["FORMS", "main"]

FORMS: Final = ("parquet", "parquet_chosen", "jsonl")
"""The topologies, by their names in the program."""
_PART: Final = 50_000
_BEGIN: Final = 1_767_225_600_000_000
_PATIENCE: Final = 300.0
_POLL_SECONDS: Final = 0.05


def _parts(records: int) -> Iterator[Any]:
    """The table, in parts."""
    import pyarrow as pa

    random = Random(7)
    for first in range(0, records, _PART):
        numbers = range(first, min(first + _PART, records))
        columns = {
            "item": [f"item {random.randrange(10_000)}" for _ in numbers],
            "cents": [random.randrange(100_000) for _ in numbers],
            "weight": [random.random() for _ in numbers],
            "note": ["a note of some length"] * len(numbers),
            "left": [None if number % 10 == 0 else number for number in numbers],
            "at": [_BEGIN + number for number in numbers],
        }
        yield pa.table(columns)


async def _send(address: str, stream: str, parts: list[Any]) -> int:
    """Send all parts. Returns how many rows went by columns."""
    async with Injector(stream, address=address, process="bench") as injector:
        for part in parts:
            await injector.send_table(part, timestamp="at")
        await injector.flush()
        return injector.by_columns


def _rows_in(folder: Path, read: dict[Path, int]) -> int:
    """How many rows are in files. ``read``: what is known of former files."""
    import pyarrow.parquet as pq

    for path in folder.rglob("*"):
        if path.suffix in (".parquet", ".jsonl") and path not in read and "_millwheel" not in str(path):
            is_lines = path.suffix == ".jsonl"
            read[path] = path.read_bytes().count(b"\n") if is_lines else pq.read_metadata(path).num_rows
    return sum(read.values())


def measure(form: str, parts: list[Any]) -> str:
    """One run, in words. RuntimeError: rows are missing, or there twice."""
    records = sum(part.num_rows for part in parts)
    with tempfile.TemporaryDirectory(prefix="millwheel-bench-") as place:
        os.environ["BENCH_LAKE"] = place
        server = ServerProcess(Path(place))
        try:
            submit(server.address, form, "bench.lake_program")
            process, name = psutil.Process(server.pid), form.replace("_", "-")
            began, spent = time.monotonic(), sum(process.cpu_times()[:2])
            by_columns = asyncio.run(_send(server.address, f"{name}/sales", parts))
            read, end = dict[Path, int](), began + _PATIENCE
            while (rows := _rows_in(Path(place) / name, read)) < records and time.monotonic() < end:
                time.sleep(_POLL_SECONDS)
            seconds, spent = time.monotonic() - began, sum(process.cpu_times()[:2]) - spent
        finally:
            server.stop()
    if rows != records:
        raise RuntimeError(f"{rows:,} rows in files, of {records:,}")
    return (
        f"{form:15} {records / seconds:>10,.0f} records/s, {spent / records * 1e6:.2f} µs of the server a record, "
        f"{len(read)} files, {by_columns:,} rows sent by columns"
    )


def main(records: int, runs: int, forms: list[str]) -> None:
    """Print the figures of each run."""
    parts = list(_parts(records))
    for _ in range(runs):
        for form in forms:
            print(measure(form, parts), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.lakes", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    given = parser.parse_args()
    main(given.records, given.runs, given.forms)
