"""Tasks without Spark against a real server: rows by columns and one by one are the same records (5.2, 6.1.1)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

import pyarrow as pa

from millwheel.client.injector import BatchOf, Injector, InjectorSettings
from millwheel.client.injector.messages import KeyedRecords, RoutingArrived
from millwheel.client.injector.routing_follower import routing_from_wire
from millwheel.injectors.batches import BATCH_SOURCE
from millwheel.injectors.spark.columns import RowReader, Rows
from millwheel.injectors.spark.driver import announce, finish, settle
from millwheel.injectors.spark.errors import RowError
from millwheel.injectors.spark.options import SinkOptions
from millwheel.injectors.spark.tasks import Partition, write_partition
from millwheel.rpc.columns import RecordColumns
from millwheel.rpc.v1 import control_pb2
from tests.injectors.by_columns import sent_by_columns
from tests.injectors.inside import session_of
from tests.injectors.receivers import Consumer
from tests.spark.server import TripServer

pytestmark = pytest.mark.timeout(120)
HOUR = 3_600_000_000


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return sent_by_columns(monkeypatch)


def trips(start: int, end: int, **other: Any) -> pa.RecordBatch:
    """Trips as Spark passes them to a task. ``load`` is null for each fifth one."""
    numbers = range(start, end)
    columns = {
        "id": [f"trip-{number}" for number in numbers],
        "city": [("oslo", "rome")[number % 2] for number in numbers],
        "at": [number * HOUR for number in numbers],
        "load": [number / 2 if number % 5 else None for number in numbers],
        "when": pa.array([number * HOUR for number in numbers], pa.timestamp("us", tz="UTC")),
    }
    return pa.record_batch({**columns, **other})


def check(server: TripServer, count: int) -> None:
    """Trips 0 to ``count`` took effect, each once and none late."""
    found = sorted((seen.id, seen.nth, seen.at, seen.late) for seen in server.effects())
    assert found == sorted((f"trip-{number}", 1, number * HOUR, False) for number in range(count))


@pytest.mark.guarantee("G1", section="6.1.1")
def test_columns_and_rows_of_a_batch_count_once(
    tmp_path: Path, sent: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A task that fails has sent its rows as columns. Its retry sends them one by one, and in other Arrow batches.

    Two rows of one id are one record. The options name the column of times, so that it is no field causes no warning.
    """
    with TripServer(tmp_path, "plain_trips") as server:
        options = SinkOptions("plain-trips/trips", "id", "when", address=server.address, any_timestamp=True)
        batch = BatchOf(options.scope("load"), 0)
        sequencer = announce(options)
        report = write_partition(iter([trips(0, 120), trips(120, 200)]), options, batch, sequencer)
        assert (report.rows, report.newest) == (200, 199 * HOUR)
        assert (before := sum(sent)) >= 200, "they were sent by columns"
        with monkeypatch.context() as patched:
            patched.setattr(Rows, "are_plain", False)
            write_partition(iter([trips(50, 250)]), options, batch, sequencer)
        assert sum(sent) == before
        twice = pa.Table.from_batches([trips(240, 300), trips(250, 300)]).combine_chunks().to_batches()[0]
        report = write_partition(iter([trips(150, 250), twice]), options, batch, sequencer)
        settle(options, [report], batch)
        finish(options)
        check(server, 300)
    assert "no fields of" not in caplog.text


def test_a_row_among_columns_that_is_no_record_is_named(tmp_path: Path, sent: list[int]) -> None:
    with TripServer(tmp_path, "plain_trips") as server:
        options = SinkOptions("plain-trips/trips", "id", "when", address=server.address, any_timestamp=True)
        batch, sequencer = BatchOf(options.scope("load"), 0), announce(options)
        given = [trips(0, 10), trips(10, 20, id=[*(f"trip-{number}" for number in range(10, 19)), "x" * 70_000])]
        with pytest.raises(RowError, match=r"the row with id 'x+' \(row 19 of partition 0\): a key") as caught:
            write_partition(iter(given), options, batch, sequencer)
        assert "limit" in str(caught.value)
        assert sum(sent) >= 8, "the first Arrow batch was sent by columns"
        wrong = trips(0, 10, city=range(10))
        with pytest.raises(RowError, match=r"the row with id 'trip-0' .*Expected `str`"):
            write_partition(iter([wrong]), options, batch, sequencer)
        report = write_partition(iter([trips(0, 20)]), options, batch, sequencer)
        settle(options, [report], batch)
        finish(options)
        check(server, 20)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (pa.array([[("k", 1)], [("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64())), "duplicate key was 'k'"),
        (pa.array([0, 253_402_300_800_000_000], pa.timestamp("us")), "date value out of range"),
    ],
    ids=["a-key-twice", "the-year-10000"],
)
def test_a_row_without_a_python_value_is_named(other: pa.Array, why: str) -> None:
    with pytest.raises(RowError, match=rf"the row with id 'trip-1' \(row 1 of partition 0\): .*{why}"):
        passed(trips(0, 2, k=["x", "y"], other=other), columns=False)


# The same rows in both forms.

OPTIONS = SinkOptions("s", "id", "at", any_timestamp=True)
TIME = pa.timestamp("us", tz="America/New_York")
KINDS = {
    "id": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "at": (TIME, st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(lambda one: one.replace(tzinfo=UTC))),
    "k": (pa.string(), st.text(max_size=3)),
    "ok": (pa.bool_(), st.booleans()),
    "n": (pa.float32(), st.none() | st.floats(width=32)),
    "raw": (pa.binary(), st.none() | st.binary()),
    "time": (pa.int8(), st.integers(-128, 127)),
}
ROWS = st.lists(st.fixed_dictionaries({name: values for name, (_, values) in KINDS.items()}), min_size=1, max_size=9)


def passed(batch: pa.RecordBatch, *, columns: bool) -> list[tuple[Any, ...]]:
    """What a task passes to the injector's core: the id, value, timestamp and key of each record, and their scope."""

    async def send() -> list[KeyedRecords]:
        found: list[KeyedRecords] = []
        settings = InjectorSettings(any_timestamp=True, strict_keys=True)
        injector = Injector("s", process="spark", source=BATCH_SOURCE, sequencer=1, settings=settings)
        session: Any = session_of(injector)
        wired = control_pb2.WatchRoutingResponse(
            revision=1, consumers=[Consumer("x", "a").route()], position_ranges=True, column_batches=True
        )
        session.core.step(RoutingArrived(routing_from_wire(wired)), 0)
        session.is_open, session.step = True, found.append
        reader = RowReader(OPTIONS, 0, 0)
        rows = reader.read(batch)
        if not columns:
            rows.are_plain = False
        await Partition(injector, OPTIONS, BatchOf("load", 3), reader).send(rows)
        assert any(isinstance(one.values, RecordColumns) for one in found) == columns
        return found

    return sorted(
        (one.scope, *record)
        for one in asyncio.run(send())
        for record in zip(one.ids, one.values, one.timestamps, *one.keys.values(), strict=True)
    )


@pytest.mark.guarantee("G1", section="6.1.1")
@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(ROWS, st.integers(0, 3))
@example([{"id": -7, "at": datetime(1969, 1, 1, tzinfo=UTC), "k": "", "ok": True, "n": 0.1, "raw": b"", "time": 1}], 0)
def test_columns_and_rows_are_the_same_records(rows: list[dict[str, Any]], start: int) -> None:
    """Ids, values, times and keys, also of a slice of a batch, and with any names of columns."""
    schema = pa.schema([(name, kind) for name, (kind, _) in KINDS.items()])
    batch = pa.RecordBatch.from_pylist(rows, schema)[min(start, len(rows) - 1) :]
    assert passed(batch, columns=True) == passed(batch, columns=False)
