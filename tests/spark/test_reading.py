"""Streams and states of a real server as DataFrames: each record once, also if a driver dies (4.3, 4.4)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millwheel.client.injector import BlockingInjector
from millwheel.client.kept_log import KeptLog
from millwheel.client.states import BlockingStateReader
from millwheel.injectors.spark.loop import run
from millwheel.injectors.spark.read_options import parse_read_options
from millwheel.injectors.spark.readers import BatchReader, OffsetRange, StreamReader, find_readable
from millwheel.model.time import to_datetime
from millwheel.rpc.failures import RequestError
from tests.patience import patience, until
from tests.spark.jobs import DAY
from tests.spark.reading_jobs import copy
from tests.spark.server import TripServer
from tests.spark.trips import Trip, trips

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


def drive(server: TripServer, start: int, end: int) -> None:
    """Inject trips, and wait until the log of ``seen`` has them all."""
    with BlockingInjector("trips", address=server.address, process=f"p{start}", topology=trips) as injector:
        for number in range(start, end):
            trip = Trip(f"trip-{number}", "oslo", number)
            injector.send(trip, timestamp=number * DAY // 24, id=str(number))
        injector.flush()

    async def has_all() -> bool:
        async with KeptLog("trips/seen", address=server.address) as kept:
            return await kept.end() == end

    run(until(has_all))


def read(spark: SparkSession, server: TripServer, **options: str) -> DataFrame:
    return spark.read.format("millwheel").options(address=server.address, **options).load()


def seen(numbers: range) -> list[tuple[Any, ...]]:
    """The records of ``seen`` by their columns."""
    return sorted((f"trip-{number}", 1, number * DAY // 24, False) for number in numbers)


@pytest.mark.guarantee("G1", section="4.3")
def test_a_batch_read_has_what_was_produced(spark: SparkSession, server: TripServer) -> None:
    assert read(spark, server, stream="seen").collect() == []
    drive(server, 0, 250)
    frame = read(spark, server, stream="seen", records_per_task="60", offset_column="offset", timestamp_column="when")
    assert frame.rdd.getNumPartitions() == 5
    rows = frame.selectExpr("id", "nth", "at", "late", "offset", "unix_micros(`when`) AS micros").collect()
    assert sorted(tuple(row)[:4] for row in rows) == seen(range(250))
    assert [row.offset for row in rows] == [*range(250)], "a task has consecutive records"
    assert all(row.micros == row["at"] for row in rows)
    assert ranges(server, starting_offset="40", ending_offset="240", records_per_task="150") == [(40, 190), (190, 240)]
    since = rows[100].micros
    first = min(row.offset for row in rows if row.micros >= since)
    assert ranges(server, starting_offset=to_datetime(since).isoformat()) == [(first, 250)]
    for nothing in ({"starting_offset": "latest"}, {"starting_offset": "250"}, {"ending_offset": "0"}):
        assert ranges(server, **nothing) == []


def ranges(server: TripServer, **options: str) -> list[tuple[int, int]]:
    """The offsets of each task of a batch read."""
    found = find_readable(parse_read_options({"stream": "seen", "address": server.address, **options}))
    return [(one.first, one.end) for one in BatchReader(found).partitions() if isinstance(one, OffsetRange)]


@pytest.mark.guarantee("G1", section="4.3")
def test_each_record_is_once_in_parquet_though_a_driver_dies(
    spark: SparkSession, server: TripServer, tmp_path: Path
) -> None:
    drive(server, 0, 350)
    command = [sys.executable, "-m", "tests.spark.reading_jobs", server.address, str(tmp_path)]
    log = (tmp_path / "driver.log").open("wb")
    with log, subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True) as driver:
        assert driver.wait(timeout=patience(240)) == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-4_000:]
    checkpoint = tmp_path / "checkpoint"
    assert (checkpoint / "offsets" / "3").exists(), "the batch is planned; the first one is empty"
    assert not (checkpoint / "commits" / "3").exists()
    drive(server, 350, 420)
    copy(spark, server.address, tmp_path)
    assert rows_of(spark, tmp_path) == [*range(420)]
    # A driver that dies after the files were written, and before its commit.
    newest = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / str(newest)).unlink()
    (checkpoint / "commits" / f".{newest}.crc").unlink(missing_ok=True)
    drive(server, 420, 430)
    copy(spark, server.address, tmp_path)
    assert rows_of(spark, tmp_path) == [*range(430)]


def rows_of(spark: SparkSession, place: Path) -> list[int]:
    """The offsets in the files."""
    frame = spark.read.parquet(str(place / "out"))
    count = frame.count()
    assert sorted(tuple(row) for row in frame.select("id", "nth", "at", "late").collect()) == seen(range(count))
    return sorted(row.offset for row in frame.select("offset").collect())


@pytest.mark.paper(section="4.4")
def test_states_are_those_that_lookups_return(spark: SparkSession, server: TripServer) -> None:
    drive(server, 0, 120)
    frame = read(spark, server, state="trips/per-trip")
    assert frame.rdd.getNumPartitions() == 3, "a task for each interval"
    rows = {row.key: row.state for row in frame.select("key", "state").collect()}
    with BlockingStateReader("trips/per-trip", int, address=server.address) as states:
        assert rows == states.get_many(f"trip-{number}" for number in range(120))
    assert frame.selectExpr("sum(size(timers))", "count(hold_us)").first() == (0, 0)


@pytest.mark.guarantee("G1", section="4.3")
def test_offsets_of_another_log_are_refused(server: TripServer) -> None:
    drive(server, 0, 5)
    reader = StreamReader(find_readable(parse_read_options({"stream": "seen", "address": server.address})))
    try:
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        end = reader.latestOffset(start, ReadAllAvailable())
        assert (start["offset"], end["offset"]) == (0, 5)
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        assert reader.partitions(end, end) == []
        with pytest.raises(RequestError, match=r"was replaced by another.*begin with a new checkpoint"):
            reader.latestOffset({**start, "log": "another"}, ReadAllAvailable())
        ahead = {**start, "offset": 6}
        assert reader.latestOffset(ahead, ReadAllAvailable()) == ahead, "it waits for this offset"
        drive(server, 5, 8)
        reader.prepareForTriggerAvailableNow()
        drive(server, 8, 9)
        assert reader.latestOffset(end, ReadAllAvailable())["offset"] == 8, "what was available when it began"
    finally:
        reader.stop()


@pytest.mark.guarantee("G1", section="4.3")
def test_a_first_batch_that_is_repeated_loses_nothing(server: TripServer) -> None:
    drive(server, 0, 5)
    found = find_readable(
        parse_read_options({"stream": "seen", "address": server.address, "starting_offset": "latest"})
    )
    before, after = StreamReader(found), StreamReader(found)
    try:
        begin = before.initialOffset()
        drive(server, 5, 8)
        first = before.latestOffset(begin, ReadAllAvailable())
        # The driver dies: the checkpoint has the end of the first batch, and no commit of it.
        drive(server, 8, 10)
        # Spark repeats the first batch, and asks again where it begins.
        tasks = [*after.partitions(after.initialOffset(), first)]
        tasks += after.partitions(first, after.latestOffset(first, ReadAllAvailable()))
        assert [(one.first, one.end) for one in tasks if isinstance(one, OffsetRange)] == [(5, 10)]
    finally:
        before.stop()
        after.stop()


def test_columns_of_ones_own_are_refused(spark: SparkSession, server: TripServer) -> None:
    with pytest.raises(Exception, match=r"leave out .schema\(\)"):
        spark.read.schema("id int").format("millwheel").options(address=server.address, stream="seen").load().collect()
    with pytest.raises(Exception, match="has a column 'id' already"):
        read(spark, server, stream="seen", offset_column="id")
