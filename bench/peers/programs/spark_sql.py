"""The count in Spark's Structured Streaming, by SQL. No Python runs for a record."""

from __future__ import annotations

import json
import os
from typing import Any

from pyspark.sql import SparkSession

__all__ = ["main"]

_COUNT = """
SELECT `key`, to_json(named_struct('key', `key`, 'start', unix_millis(`window`.start), 'count', `count`)) AS `value`
FROM (
  SELECT `key`, window(`timestamp`, '{window_ms} milliseconds') AS `window`, COUNT(*) AS `count`
  FROM hits GROUP BY `key`, window(`timestamp`, '{window_ms} milliseconds')
)"""


def main(job: dict[str, Any]) -> None:
    """Run the job until the process is stopped."""
    builder, settings = SparkSession.builder, job["settings"]
    for name in (name for name in settings if name.startswith("spark.")):
        builder = builder.config(name, settings[name])
    spark = builder.getOrCreate()
    (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job["broker"])
        .option("subscribe", job["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings["maxOffsetsPerTrigger"])
        .load()
        .selectExpr("from_json(CAST(value AS STRING), 'key STRING').key AS key", "timestamp")
        .withWatermark("timestamp", f"{job['out_of_order_ms']} milliseconds")
        .createOrReplaceTempView("hits")
    )
    (
        spark.sql(_COUNT.format(**job))
        .writeStream.format("kafka")
        .outputMode("append")
        .option("kafka.bootstrap.servers", job["broker"])
        .option("topic", job["target"])
        .option("checkpointLocation", f"{job['place']}/checkpoints")
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    main(json.loads(os.environ["PEER_JOB"]))
