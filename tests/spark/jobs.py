"""The tests' jobs on Spark: trips in files, one file for each micro-batch.

``python -m tests.spark.jobs ADDRESS PLACE [SETTING=VALUE ...]`` runs a driver as a process, which can be killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples.demo.spark_job import QUICK_START
from millwheel.injectors.spark import finish_stream
from tests.spark.faults import Faulty

COLUMNS = "id string, city string, at long, load double, when timestamp"
DAY = 86_400_000_000
"""Microseconds."""

_SETTINGS = {
    "spark.master": "local[2,4]",
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    "spark.sql.streaming.commitProtocol": "v1",
}


def session(settings: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """A small session, local unless ``settings`` name a master."""
    builder = SparkSession.builder
    for name, value in {**_SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def write_trips(place: Path, numbers: Iterable[int], name: str) -> None:
    """Write a file of trips, each an hour after the one before. Spark takes files in the order of their last change."""
    place.mkdir(exist_ok=True, parents=True)
    newest = max((file.stat().st_mtime_ns for file in place.glob("*.parquet")), default=0)
    at = [number * DAY // 24 for number in numbers]
    columns = {
        "id": [f"trip-{number}" for number in numbers],
        "city": [("oslo", "rome")[number % 2] for number in numbers],
        "at": at,
        "load": [number / 2 for number in numbers],
        "when": pa.array(at, pa.timestamp("us", tz="UTC")),
    }
    # Two row groups: a file of some size becomes two partitions.
    file = place / f"{name}.parquet"
    pq.write_table(pa.table(columns), file, row_group_size=max(1, len(at) // 2))
    # The kernel's clock for files has steps of several milliseconds, so two files could have one time.
    changed = max(file.stat().st_mtime_ns, newest + 1_000_000_000)
    os.utime(file, ns=(changed, changed))


def options_for(address: str, **more: str) -> dict[str, str]:
    """The sink's options for trips."""
    columns = {"id_column": "id", "timestamp_column": "when", "allowed_delay": "1 day"}
    return {"address": address, "stream": "trips", **columns, **more}


def start(spark: SparkSession, place: Path, options: dict[str, str], form: str) -> StreamingQuery:
    """A query over the files of ``place/in``, one for each micro-batch in the order of their names, to their end."""
    trips = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(place / "in"))
    return (
        trips.repartition(2)
        .writeStream.format(form)
        .options(**options)
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def main(address: str, place: str, *settings: str) -> None:
    """Run the query to its end, and end the stream."""
    spark = session(dict(setting.split("=", 1) for setting in settings))
    spark.dataSource.register(Faulty)
    options = options_for(address)
    query = start(spark, Path(place), options, "millwheel-faulty")
    query.awaitTermination()
    finish_stream(query, options)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
