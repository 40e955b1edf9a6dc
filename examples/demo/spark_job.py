"""The Spark job: it reads the files in order, some in each micro-batch, and writes them to MillWheel's stream.

Run as ``python -m examples.demo.spark_job ADDRESS FILES CHECKPOINT FILES_A_BATCH``. It prints a line when Spark's
session is there. The last line of its output is a JSON object with the durations of the micro-batches.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Final

from pyspark.sql import SparkSession

from millwheel.injectors.spark import MillwheelDataSource, finish_stream, start_python

__all__ = ["run", "session"]

COLUMNS: Final = (
    "id string, origin string, city string, dest string, carrier string, flight long, delay long, "
    "scheduled long, known long"
)
QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVM options for a job of a minute or two.

A second compiler tier and parallel garbage collection cost more than they save.
"""
WITHOUT_SUMS: Final = "org.apache.hadoop.fs.local.RawLocalFs"
"""The checkpoint's files without a file of sums beside each.

Spark runs a command for each file that it makes, and a micro-batch makes three.
"""
ALLOWED_DELAY: Final = "1301 minutes"
"""The maximum delay of a flight in that year."""


def session() -> SparkSession:
    """A small local session."""
    spark = (
        SparkSession.builder.appName("flights of New York")
        .master("local[2]")
        .config("spark.driver.memory", "768m")
        .config("spark.driver.extraJavaOptions", QUICK_START)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.hadoop.fs.AbstractFileSystem.file.impl", WITHOUT_SUMS)
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run(address: str, files: str, checkpoint: str, files_a_batch: str) -> dict[str, object]:
    """Stream all files into MillWheel.

    The effect is exactly once, even if the job is restarted with the same checkpoint.
    """
    spark = session()
    start_python(spark, batch_writes=False)
    print("Spark has started", flush=True)
    spark.dataSource.register(MillwheelDataSource)
    flights = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", files_a_batch).parquet(files)
    options = {
        "address": address,
        "stream": "departures",
        "id_column": "id",
        "timestamp_column": "scheduled",
        "watermark_column": "known",
        "allowed_delay": ALLOWED_DELAY,
    }
    query = (
        flights.writeStream.format("millwheel")
        .options(**options)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    finish_stream(query, options)
    took = sorted(one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"])
    spark.stop()
    return {"batches": len(took), "median_ms": took[len(took) // 2], "longest_ms": took[-1]}


if __name__ == "__main__":
    # Spark's Python workers use the interpreter that runs this job.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    print(json.dumps(run(*sys.argv[1:5])), flush=True)
