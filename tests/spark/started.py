"""A driver that starts Spark's Python processes before its first batch.

``python -m tests.spark.started ADDRESS PLACE`` prints the processes that no commit needs, all processes before the
batches, those after a micro-batch and those after a batch write. Then it prints the job that has started those of the
executors: its description, and how many tasks it has. At last it prints how many objects the collector leaves out in
each of them. Each is a line of JSON.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from millwheel.injectors.spark import MillwheelDataSource, launcher, start_python, use_this_python
from millwheel.injectors.spark.starting import tried
from tests.patience import patience
from tests.spark.jobs import COLUMNS, options_for, session, start

SETTINGS: Final = {
    "spark.default.parallelism": "7",
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    "spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled": "true",
}
"""A session that has not Spark's defaults."""


def processes() -> list[str]:
    """The processes that Spark has started for this driver by the launcher, by the module that each runs.

    Each forks others as it needs them. Those end when they are idle for a minute, which a busy machine reaches.
    """
    found = []
    for java in psutil.Process().children():
        for one in java.children():
            with suppress(psutil.NoSuchProcess):  # Spark also runs commands of a moment
                if {"pyspark.daemon", launcher.__file__} <= set(command := one.cmdline()):
                    found.append(f"{command[-1]} {one.pid}")
    return sorted(found)


def started(spark: SparkSession, *, commits: bool = True) -> list[str]:
    """The processes, once ``start_python`` is done."""
    thread = start_python(spark, batch_writes=commits, micro_batches=commits)
    thread.join(patience(60.0))
    assert not thread.is_alive()
    return processes()


def frozen(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run in an executor: how many objects the collector leaves out."""
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"objects": [gc.get_freeze_count()]})


def needs_a_module(rows: Iterable[int]) -> Iterable[int]:
    """Run in an executor that lacks a package."""
    import millwheel_of_no_executor  # type: ignore[import-not-found]  # noqa: F401

    return rows


def start_incomplete(spark: SparkSession) -> None:
    spark.sparkContext.parallelize([0], 1).mapPartitions(needs_a_module).count()


def write_batch(spark: SparkSession, place: Path, options: dict[str, str]) -> None:
    """Write the trips of ``place/in`` once more, as a load."""
    trips = spark.read.schema(COLUMNS).parquet(str(place / "in")).repartition(2)
    load = {"process": "load", "query": "load"}
    trips.write.format("millwheel").mode("append").options(**options, **load).save()


def main(address: str, place: str) -> None:
    """Run a micro-batch and a batch write. Then start processes that fail, and others for a session that is stopped."""
    use_this_python()
    spark = session(SETTINGS)
    spark.dataSource.register(MillwheelDataSource)
    print(json.dumps(started(spark, commits=False)))
    print(json.dumps(started(spark)))
    start(spark, Path(place), options_for(address), "millwheel").awaitTermination()
    print(json.dumps(processes()))
    write_batch(spark, Path(place), options_for(address))
    print(json.dumps(processes()))
    context: Any = spark.sparkContext._jsc  # noqa: SLF001  # Python has no other way to a job's description
    job = context.sc().statusStore().job(0)
    print(json.dumps([job.description().get(), job.numTasks()]))
    objects = spark.range(0, 2, 1, 2).mapInArrow(frozen, "objects long").collect()
    print(json.dumps([row.objects for row in objects]), flush=True)
    tried(start_incomplete, spark)
    context.stop()  # it is not yet known to Python
    started(spark)
    spark.stop()
    started(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
