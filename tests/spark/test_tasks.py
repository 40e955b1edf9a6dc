"""Tasks without Spark against a real server: rows by columns and one by one are the same records (5.2, 6.1.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from millwheel.client.injector import BatchOf
from millwheel.injectors.spark.columns import Rows
from millwheel.injectors.spark.driver import announce, finish, settle
from millwheel.injectors.spark.errors import RowError
from millwheel.injectors.spark.options import SinkOptions
from millwheel.injectors.spark.tasks import write_partition
from millwheel.rpc.columns import RecordColumns
from tests.spark.server import TripServer

pytestmark = pytest.mark.timeout(120)
HOUR = 3_600_000_000


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of records of each delivery by columns."""
    found: list[int] = []
    to_wire = RecordColumns.to_wire

    def counted(self: RecordColumns) -> Any:
        found.append(len(self))
        return to_wire(self)

    monkeypatch.setattr(RecordColumns, "to_wire", counted)
    return found


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
    tmp_path: Path, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that fails has sent its rows as columns. Its retry sends them one by one, and in other Arrow batches."""
    with TripServer(tmp_path, "plain_trips") as server:
        options = SinkOptions("plain-trips/trips", "id", "when", address=server.address, any_timestamp=True)
        batch = BatchOf(options.scope("load"), 0)
        sequencer = announce(options)
        report = write_partition(iter([trips(0, 120), trips(120, 200)]), options, batch, sequencer)
        assert (report.rows, report.newest) == (200, 199 * HOUR)
        assert sum(sent) == 160, "those without a null were sent by columns"
        with monkeypatch.context() as patched:
            patched.setattr(Rows, "divided", lambda rows: (None, rows))
            write_partition(iter([trips(50, 250)]), options, batch, sequencer)
        assert sum(sent) == 160
        report = write_partition(iter([trips(150, 300)]), options, batch, sequencer)
        settle(options, [report], batch)
        finish(options)
        check(server, 300)


def test_a_row_among_columns_that_is_no_record_is_named(tmp_path: Path, sent: list[int]) -> None:
    with TripServer(tmp_path, "plain_trips") as server:
        options = SinkOptions("plain-trips/trips", "id", "when", address=server.address, any_timestamp=True)
        batch, sequencer = BatchOf(options.scope("load"), 0), announce(options)
        given = [trips(0, 10), trips(10, 20, id=[*(f"trip-{number}" for number in range(10, 19)), "x" * 70_000])]
        with pytest.raises(RowError, match=r"the row with id 'x+' \(row 19 of partition 0\): a key") as caught:
            write_partition(iter(given), options, batch, sequencer)
        assert "limit" in str(caught.value)
        assert sum(sent) == 8, "the first Arrow batch was sent by columns"
        wrong = trips(0, 10, city=range(10))
        with pytest.raises(RowError, match=r"the row with id 'trip-0' .*Expected `str`"):
            write_partition(iter([wrong]), options, batch, sequencer)
        report = write_partition(iter([trips(0, 20)]), options, batch, sequencer)
        settle(options, [report], batch)
        finish(options)
        check(server, 20)
