"""What the programs of Spark have in common: the session, the source and the sink."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

__all__ = ["run"]


def run(count: Callable[[DataFrame, dict[str, Any]], DataFrame]) -> None:
    """Run the job of ``PEER_JOB`` until the process is stopped.

    Args:
        count: Makes the keys and values of the target topic of the records of Kafka.
    """
    job = json.loads(os.environ["PEER_JOB"])
    builder, settings = SparkSession.builder, job["settings"]
    for name in (name for name in settings if name.startswith("spark.")):
        builder = builder.config(name, settings[name])
    records = (
        builder.getOrCreate()
        .readStream.format("kafka")
        .option("kafka.bootstrap.servers", job["broker"])
        .option("subscribe", job["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings["maxOffsetsPerTrigger"])
        .load()
    )
    (
        count(records.withWatermark("timestamp", f"{job['out_of_order_ms']} milliseconds"), job)
        .writeStream.format("kafka")
        .outputMode("append")
        .option("kafka.bootstrap.servers", job["broker"])
        .option("topic", job["target"])
        .option("checkpointLocation", f"{job['place']}/checkpoints")
        .start()
        .awaitTermination()
    )
