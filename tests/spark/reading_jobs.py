"""The tests' queries that read a stream into Parquet files.

``python -m tests.spark.reading_jobs ADDRESS PLACE`` runs a driver as a process, which can be killed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from millwheel.injectors.spark import MillwheelDataSource
from millwheel.injectors.spark.readers import StreamReader
from tests.spark.jobs import session

LARGEST_BATCH = 100


class Deadly(MillwheelDataSource):
    """Format ``millwheel-deadly``: its driver is killed when the third batch with records is in the checkpoint.

    That batch has no commit then.
    """

    @classmethod
    def name(cls) -> str:
        super().name()
        return "millwheel-deadly"

    def streamReader(self, schema: StructType) -> StreamReader:
        plain = super().streamReader(schema)
        plain.__class__ = DeadlyReader
        return plain


class DeadlyReader(StreamReader):
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start["offset"] == 2 * LARGEST_BATCH:
            os.killpg(os.getpgid(0), signal.SIGKILL)
        return super().partitions(start, end)


def copy(spark: SparkSession, address: str, place: Path, form: str = "millwheel") -> None:
    """Run the query to the present end of the stream."""
    options = {"address": address, "stream": "trips/seen", "offset_column": "offset", "timestamp_column": "when"}
    rows = (
        spark.readStream.format(form)
        .options(**options, max_records_per_batch=str(LARGEST_BATCH), records_per_task="60")
        .load()
    )
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(place / "out"))
    )
    query.awaitTermination()


if __name__ == "__main__":
    made = session()
    made.dataSource.register(Deadly)
    copy(made, sys.argv[1], Path(sys.argv[2]), "millwheel-deadly")
