"""Spark's sink into a keyed count: `python -m bench.spark [--rows N] [--writes N]`.

Spark writes rows of Parquet files with two local executors' worth of threads, on the machine that counts them by key
and second. Each figure comes from a Spark session of its own, against a fresh development server:

- `first_s`: the first batch of a session, 1,000 rows. The program calls `start_python` for batch writes
  as soon as the session is there;
- `first_noop_s`: the same rows into Spark's own sink that does nothing, which starts no Python;
- `first_python_noop_s`: the same rows into a Python sink that does nothing, which is the floor of one without the call;
- `rows_per_s`: batch writes of many rows, after a first one. The time of a write is from its call to its return, when
  all rows are committed.

The time of a first batch is from the call that reads the files to the end of the write. So it has the JVM's first plan
of a session, too. The format is registered before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from bench.build import choose
from bench.machine import Machine
from bench.report import Figure, print_figures, write_figures
from bench.server import server, submit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["main", "measure"]

_ROOT: Final = str(Path(__file__).parents[1])
_FIRST: Final = 1_000
_KEYS: Final = 10_000
_TIMES: Final = 100
"""Rows for each millisecond of event time."""
_LIMIT: Final = 300.0
_TURNS: Final = 2
"""How often each first batch is measured. The quickest counts: other programs only make one slower."""
_FIRSTS: Final = {
    "first": "spark.first_s",
    "noop": "spark.first_noop_s",
    "python-noop": "spark.first_python_noop_s",
}
"""The figures of first batches, by their jobs."""
_NOOPS: Final = {"noop": "noop", "python-noop": "nothing"}
"""The formats that do nothing, by the job that writes by each."""


def write_rows(place: Path, first: int, count: int) -> None:
    """Write rows, with ids of their own and of 100 bytes, as two files: Spark reads them with two tasks."""
    place.mkdir(parents=True)
    for part, half in enumerate((range(first, first + count // 2), range(first + count // 2, first + count))):
        table = pa.table(
            {
                "id": [f"row-{number:012}" for number in half],
                "key": [f"key-{number * 7919 % _KEYS:05}" for number in half],
                "text": ["x" * 40] * len(half),
                "at": pa.array([number * 1_000 // _TIMES for number in half], pa.timestamp("us", tz="UTC")),
            }
        )
        pq.write_table(table, place / f"{part}.parquet")


def measure(rows: int, writes: int) -> list[Figure]:
    """All figures. RuntimeError: a session fails, or takes too long."""
    with tempfile.TemporaryDirectory(prefix="millwheel-bench-") as place:
        write_rows(Path(place) / "first", 0, _FIRST)
        for number in range(writes + 1):
            write_rows(Path(place) / str(number), number * rows, rows)
        turns = [[_session(job, place, 0)[0] for job in _FIRSTS] for _ in range(_TURNS)]
        seconds = _session("rate", place, writes)
    rates = tuple(rows / each for each in seconds)
    return [
        *(
            Figure(name, min(runs), "s", runs)
            for name, runs in zip(_FIRSTS.values(), zip(*turns, strict=True), strict=True)
        ),
        Figure("spark.rows_per_s", max(rates), "rows/s", rates),
    ]


def _session(job: str, place: str, writes: int) -> list[float]:
    """The seconds of each measured write of one session, which runs in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": _ROOT, "PYSPARK_PYTHON": sys.executable}
    with server() as address:
        submit(address, "spark_rows")
        command = [sys.executable, "-m", "bench.spark", "--job", job, address, place, str(writes)]
        done = subprocess.run(
            command, env=environment, check=False, capture_output=True, text=True, timeout=_LIMIT, cwd=_ROOT
        )
    if done.returncode:
        raise RuntimeError(f"the session {job!r} has failed: {done.stderr[-2_000:]}")
    return [float(each) for each in json.loads(done.stdout.splitlines()[-1])]


def _run_job(job: str, address: str, place: str, writes: int) -> list[float]:
    """Run one session here. Returns the seconds of each measured write."""
    from pyspark.sql import SparkSession

    from bench.spark_nothing import Nothing
    from millwheel.injectors.spark import MillwheelDataSource, start_python

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in {"driver.memory": "1g", "driver.host": "127.0.0.1", "sql.session.timeZone": "UTC"}.items():
        builder = builder.config(f"spark.{name}", value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        if job in _NOOPS:
            if job == "python-noop":
                spark.dataSource.register(Nothing)
            return [_timed(lambda: _read(spark, place, "first").write.format(_NOOPS[job]).mode("append").save())]
        start_python(spark, micro_batches=False)
        spark.dataSource.register(MillwheelDataSource)
        if job == "first":
            return [_timed(lambda: _write(_read(spark, place, "first"), address, "first"))]
        return [
            _timed(lambda: _write(_read(spark, place, str(number)), address, f"load-{number}"))  # noqa: B023
            for number in range(writes + 1)
        ][1:]
    finally:
        spark.stop()


def _read(spark: SparkSession, place: str, name: str) -> DataFrame:
    return spark.read.parquet(f"{place}/{name}")


def _write(rows: DataFrame, address: str, query: str) -> None:
    options = {"stream": "events", "id_column": "id", "timestamp_column": "at", "allowed_delay": "1 second"}
    options |= {"address": address, "query": query, "any_timestamp": "true"}
    rows.write.format("millwheel").mode("append").options(**options).save()


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each batch write")
    parser.add_argument("--writes", type=int, default=3, help="how many batch writes are measured")
    parser.add_argument("--quick", action="store_true", help="few rows")
    parser.add_argument("--pure", action="store_true", help="the Python tree, though a compiled one is there")
    parser.add_argument("--out", type=Path, default=Path("build/bench-spark.json"))
    parser.add_argument("--job", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        job, address, place, writes = given.job
        print(json.dumps(_run_job(job, address, place, int(writes))), flush=True)
        return
    figures, machine = [choose(given.pure)], Machine()
    machine.look()
    figures += measure(10_000 if given.quick else given.rows, 1 if given.quick else given.writes)
    machine.look()
    figures += machine.figures()
    print_figures(figures)
    write_figures(figures, given.out)


if __name__ == "__main__":
    main()
