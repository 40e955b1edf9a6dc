"""A topology is updated while Spark reads its stream: nothing is lost, and errors say what to do (4.3)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millwheel.client.injector import Injector
from millwheel.client.kept_log import KeptLog
from millwheel.injectors.spark.read_options import parse_read_options
from millwheel.injectors.spark.readers import StreamReader, find_readable
from millwheel.sdk.errors import ValueDecodeError
from millwheel.server.dev_server import DevServer, DevSettings, running
from tests.connectors.given import NOON
from tests.patience import patience, until
from tests.system.server import run_cli

PROGRAM = """
import msgspec
import millwheel as mw

class Trip(msgspec.Struct):
    id: str
    city: {city}
    {more}

trips = mw.Topology("trips")
trips.source("trips", Trip, retention=mw.Retention(age=mw.days(1)))
"""


class Query:
    """A query whose driver goes on from batch to batch, as Spark's does."""

    def __init__(self, address: str, begin: dict[str, Any] | None = None) -> None:
        self.reader = StreamReader(find_readable(parse_read_options({"stream": "trips/trips", "address": address})))
        self.begin = begin or self.reader.latestOffset(self.reader.initialOffset(), ReadAllAvailable())

    def batch(self) -> list[dict[str, Any]]:
        """The rows of the next micro-batch. Its end is in the checkpoint then."""
        end = self.reader.latestOffset(self.begin, ReadAllAvailable())
        tasks = self.reader.partitions(self.begin, end)
        rows = [row for task in tasks for batch in self.reader.read(task) for row in batch.to_pylist()]
        self.begin = end
        return rows


class Trips:
    """The topology of one server, in versions."""

    def __init__(self, server: DevServer, place: Path) -> None:
        self.address = server.address
        self.program = place / "trips.py"
        self.sent = 0

    async def become(self, verb: str, city: str, more: str = "") -> None:
        self.program.write_text(PROGRAM.format(city=city, more=more))
        done = await run_cli(self.address, "topology", verb, f"{self.program}:trips", timeout=patience(60))
        assert done.code == 0, done.err

    async def send(self, *values: dict[str, Any]) -> None:
        """Inject trips, and wait until the log has them."""
        async with Injector("trips/trips", address=self.address, process=f"p{self.sent}") as injector:
            for value in values:
                await injector.send(value, timestamp=NOON)
            await injector.flush()
        self.sent += len(values)

        async def has_all() -> bool:
            async with KeptLog("trips/trips", address=self.address) as kept:
                return await kept.end() == self.sent

        await until(has_all)


@pytest.mark.guarantee("G1", section="4.3")
@pytest.mark.timeout(240)
async def test_a_query_reads_on_while_the_type_is_updated(tmp_path: Path) -> None:
    async with running(DevSettings(tmp_path / "db", port=0)) as server:
        trips = Trips(server, tmp_path)
        await trips.become("submit", "str")
        query = await asyncio.to_thread(Query, server.address)
        await trips.send({"id": "a", "city": "oslo"})
        assert await asyncio.to_thread(query.batch) == [{"id": "a", "city": "oslo"}]

        await trips.become("update", "str", "load: float = 1.0")
        await trips.send({"id": "b", "city": "rome", "load": 2.5})
        assert await asyncio.to_thread(query.batch) == [{"id": "b", "city": "rome"}], "as its columns are"
        started = await asyncio.to_thread(Query, server.address, {**query.begin, "offset": 0})
        assert await asyncio.to_thread(started.batch) == [
            {"id": "a", "city": "oslo", "load": None},
            {"id": "b", "city": "rome", "load": 2.5},
        ]

        await trips.become("update", "str | int", "load: float = 1.0")
        await trips.send({"id": "c", "city": "oslo", "load": 0.5}, {"id": "d", "city": 7, "load": 0.5})
        for one in (query, started, query):
            with pytest.raises(ValueDecodeError, match=r"'trips/trips', offset 3: .*readStream\.\.\.load\(\) again"):
                await asyncio.to_thread(one.batch)
        again = await asyncio.to_thread(Query, server.address, query.begin)
        assert await asyncio.to_thread(again.batch) == [
            {"id": "c", "city": '"oslo"', "load": 0.5},
            {"id": "d", "city": "7", "load": 0.5},
        ]
        for one in (query, started, again):
            await asyncio.to_thread(one.reader.stop)


def load(spark: SparkSession, address: str) -> DataFrame:
    return spark.readStream.format("millwheel").options(address=address, stream="trips/trips").load()


def copy(rows: DataFrame, place: Path) -> None:
    """Run a query to the present end of the stream. It goes on at its checkpoint."""
    writing = rows.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
    writing.trigger(availableNow=True).start(str(place / "out")).awaitTermination()


@pytest.mark.guarantee("G1", section="4.3")
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_query_that_is_loaded_again_has_the_present_columns(spark: SparkSession, tmp_path: Path) -> None:
    async with running(DevSettings(tmp_path / "db", port=0)) as server:
        trips = Trips(server, tmp_path)
        await trips.become("submit", "str")
        await trips.send({"id": "a", "city": "oslo"}, {"id": "b", "city": "rome"})
        first = await asyncio.to_thread(load, spark, server.address)
        await asyncio.to_thread(copy, first, tmp_path)
        await trips.become("update", "str | int", "load: float = 1.0")
        await trips.send({"id": "c", "city": 7, "load": 2.5})
        for _ in range(2):  # what was loaded before has its columns for ever
            with pytest.raises(StreamingQueryException, match=r"call spark\.readStream\.\.\.load\(\) again"):
                await asyncio.to_thread(copy, first, tmp_path)
        await asyncio.to_thread(copy, await asyncio.to_thread(load, spark, server.address), tmp_path)
    found = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "out")).select("id", "city", "load")
    rows = sorted(tuple(row) for row in found.collect())
    assert rows == [("a", "oslo", None), ("b", "rome", None), ("c", "7", 2.5)]
