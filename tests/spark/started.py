"""A driver that starts Spark's Python processes before its first batch.

``python -m tests.spark.started ADDRESS PLACE`` prints the processes before and after the batch, one JSON list each.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from millwheel.injectors.spark import MillwheelDataSource, start_python
from tests.patience import patience
from tests.spark.jobs import options_for, session, start


def processes() -> list[str]:
    """The processes that Spark has started for this driver, by the module that each runs.

    Each forks others as it needs them. Those end when they are idle for a minute, which a busy machine reaches.
    """
    found = []
    for java in psutil.Process().children():
        for one in java.children():
            with suppress(psutil.NoSuchProcess):  # Spark also runs commands of a moment
                if "pyspark.daemon" in (command := one.cmdline()):
                    found.append(f"{command[-1]} {one.pid}")
    return sorted(found)


def started(spark: SparkSession) -> list[str]:
    """The processes, once ``start_python`` is done."""
    thread = start_python(spark)
    thread.join(patience(60.0))
    assert not thread.is_alive()
    return processes()


def main(address: str, place: str) -> None:
    """Run one batch. Then start processes for a session that is stopped."""
    spark = session()
    spark.dataSource.register(MillwheelDataSource)
    print(json.dumps(started(spark)))
    start(spark, Path(place), options_for(address), "millwheel").awaitTermination()
    print(json.dumps(processes()), flush=True)
    spark.stop()
    started(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
