"""The Spark job: it reads the files in order, one in each micro-batch, and writes them to MillWheel's stream.

Run as ``python -m examples.demo.spark_job ADDRESS FILES CHECKPOINT``. It prints a line when Spark's
session is there. The last line of its output is a JSON object with the durations of the micro-batches.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from millwheel.injectors.spark import MillwheelDataSource, finish_stream, start_python, use_this_python

__all__ = ["run", "session"]

COLUMNS: Final = (
    "id string, origin string, city string, dest string, carrier string, flight long, delay long, "
    "scheduled long, known long"
)
QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
"""JVM options for a job of a minute or two.

A second compiler tier and parallel garbage collection cost more than they save. Without the last option, the JVM
collects all garbage each time when it has loaded some more classes.
"""
FIRST_ARCHIVES: Final = ("scala-library", "spark-", "hadoop-client-api", "parquet-", "arrow-", "jackson-", "log4j-")
"""Archives of classes from which most classes come. Spark has 280, and the JVM searches them for each class one by one,
in the order in which the folder has them."""
WITHOUT_SUMS: Final = "org.apache.hadoop.fs.local.RawLocalFs"
"""The checkpoint's files without a file of sums beside each.

Spark runs a command for each file that it makes, and a micro-batch makes three.
"""
ALLOWED_DELAY: Final = "1301 minutes"
"""The maximum delay of a flight in that year."""


def class_path() -> str:
    """The archives to search first."""
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "jars")
    return os.pathsep.join(str(jar) for start in FIRST_ARCHIVES for jar in sorted(jars.glob(f"{start}*.jar")))


def session() -> SparkSession:
    """A small local session.

    It runs one task at a time. The server takes longer for the rows than the task, and a second one needs a Python
    process of its own.
    """
    spark = (
        SparkSession.builder.appName("flights of New York")
        .master("local[1]")
        .config("spark.driver.memory", "768m")
        .config("spark.driver.extraJavaOptions", QUICK_START)
        .config("spark.driver.extraClassPath", class_path())
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "8192")
        .config("spark.hadoop.fs.AbstractFileSystem.file.impl", WITHOUT_SUMS)
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run(address: str, files: str, checkpoint: str) -> dict[str, object]:
    """Stream all files into MillWheel.

    The effect is exactly once, even if the job is restarted with the same checkpoint.
    """
    spark = session()
    start_python(spark, batch_writes=False)
    print("Spark has started", flush=True)
    flights = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(files)
    spark.dataSource.register(MillwheelDataSource)  # it waits for a process that start_python starts meanwhile
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
    use_this_python()
    print(json.dumps(run(*sys.argv[1:4])), flush=True)
