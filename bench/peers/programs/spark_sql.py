"""The count in Spark's Structured Streaming, by SQL. No Python runs for a record."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from bench.peers.programs.spark_topics import run

__all__ = ["counted"]

_COUNT = """
SELECT `key`, to_json(named_struct('key', `key`, 'start', unix_millis(`window`.start), 'count', `count`)) AS `value`
FROM (
  SELECT `key`, window(`timestamp`, '{window_ms} milliseconds') AS `window`, COUNT(*) AS `count`
  FROM hits GROUP BY `key`, window(`timestamp`, '{window_ms} milliseconds')
)"""


def counted(records: DataFrame, job: dict[str, Any]) -> DataFrame:
    """The results of the complete windows."""
    hits = records.selectExpr("from_json(CAST(value AS STRING), 'key STRING').key AS key", "timestamp")
    hits.createOrReplaceTempView("hits")
    return records.sparkSession.sql(_COUNT.format(**job))


if __name__ == "__main__":
    run(counted)
