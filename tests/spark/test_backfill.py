"""A backfill by batch writes, and then a live query on the same stream (G1, G7)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from millwheel.injectors.spark import finish_stream
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from tests.spark.faults import arm
from tests.spark.jobs import DAY, options_for, start, write_trips
from tests.spark.server import TripServer
from tests.spark.test_batch import failure, save, trips
from tests.spark.test_stream import FAULTY, check

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("accidents"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

HOUR = DAY // 24


@pytest.mark.guarantee("G1", "G7", section="4.5")
def test_live_data_goes_on_where_a_backfill_ended(spark: SparkSession, server: TripServer, tmp_path: Path) -> None:
    """One process name: the watermark waits at the seam. The backfill dies midway, and runs again."""
    loads = [options_for(server.address, query="history", batch=str(number)) for number in range(2)]
    save(trips(spark, 0, 200), loads[0])
    arm("die-midway")
    arm("die-before-cursor")
    assert failure(lambda: save(trips(spark, 200, 500), loads[1], FAULTY))
    save(trips(spark, 0, 200), loads[0])
    save(trips(spark, 200, 500).sort(f.desc("id")), loads[1])
    assert server.watermark() == 499 * HOUR - DAY
    live = options_for(server.address)
    write_trips(tmp_path / "in", range(500, 510), "0")
    write_trips(tmp_path / "in", range(510, 600), "1")
    query = start(spark, tmp_path, live, FAULTY)
    query.awaitTermination()
    finish_stream(query, live)
    check(server, 600)


@pytest.mark.guarantee("G7", section="4.5")
def test_live_data_beside_a_backfill_makes_it_not_late(spark: SparkSession, server: TripServer, tmp_path: Path) -> None:
    """Two processes: the low watermark is that of the slower one. The end of the history does not end the stream."""
    history = [
        options_for(server.address, process="history", query="history", batch=str(number)) for number in range(2)
    ]
    save(trips(spark, 0, 100), history[0])
    live = options_for(server.address)
    write_trips(tmp_path / "in", range(200, 300), "0")
    start(spark, tmp_path, live, "millwheel").awaitTermination()
    assert server.watermark() == 299 * HOUR - DAY
    save(trips(spark, 100, 200), {**history[1], "end_of_input": "true"})
    assert server.watermark("history") == MAX_TIMESTAMP
    assert MIN_TIMESTAMP < server.watermark() < MAX_TIMESTAMP
    write_trips(tmp_path / "in", range(300, 400), "1")
    query = start(spark, tmp_path, live, "millwheel")
    query.awaitTermination()
    finish_stream(query, live)
    check(server, 400)
