"""The Spark job that reads back what MillWheel has: the alerts, and the states of the traffic models.

Run as ``python -m examples.demo.reading_job ADDRESS``. The last line of its output is a JSON object with what it read.
"""

from __future__ import annotations

import json
import sys
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from examples.demo.spark_job import session
from millwheel.injectors.spark import MillwheelDataSource, use_this_python

__all__ = ["run"]

SHOWN_MODELS: Final = 3
WEEKS: Final = 4
"""From so many weeks on, a model is produced."""


def run(address: str) -> dict[str, object]:
    """Read both.

    Returns:
        ``alerts``, with the values of their columns; ``learned``, the number of keys that have learned enough for a
        model; and ``busiest``, the keys with the most departures in a week's hour, with these departures.
    """
    spark = session()
    spark.dataSource.register(MillwheelDataSource)
    alerts = _read(spark, address, stream="zeitgeist/anomalies")
    models = _read(spark, address, state="zeitgeist/traffic-model").where(f"size(state.history) >= {WEEKS}")
    most = models.selectExpr("key", "array_max(state.history) AS departures").orderBy("departures", "key")
    found = {
        "alerts": [list(row) for row in alerts.collect()],
        "learned": models.count(),
        "busiest": [list(row) for row in most.tail(SHOWN_MODELS)[::-1]],
    }
    spark.stop()
    return found


def _read(spark: SparkSession, address: str, **what: str) -> DataFrame:
    return spark.read.format("millwheel").options(address=address, **what).load()


if __name__ == "__main__":
    use_this_python()
    print(json.dumps(run(sys.argv[1])), flush=True)
