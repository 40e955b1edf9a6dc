"""Files of Parquet to files of Parquet on a server: by columns all the way, each row once (4.3, 5.2)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from millwheel.server.dev_server import DevServer, DevSettings, running
from tests.connectors.files import lake_of_files
from tests.connectors.files.parquet import write
from tests.injectors.by_columns import sent_by_columns, stored_as_values
from tests.injectors.test_table_sinks import rows_in
from tests.injectors.test_with_server import everything
from tests.patience import until
from tests.submitting import submit_copy

COUNT = 20_000


@pytest.mark.guarantee("G1", section="4.3")
@pytest.mark.guarantee("G15", section="4.3")
async def test_files_go_to_files_by_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLWHEEL_TEST_LAKE", str(tmp_path))
    (tmp_path / "in").mkdir()
    times = pa.array([1_767_268_800_000_000 + number for number in range(COUNT)], pa.timestamp("us", "UTC"))
    numbers = pa.array(range(COUNT), pa.int64())
    customers = [f"user-{number % 7}" for number in range(COUNT)]
    write(tmp_path / "in" / "orders.parquet", {"customer": customers, "number": numbers, "at": times})
    sent, made = sent_by_columns(monkeypatch), stored_as_values(monkeypatch)
    async with running(DevSettings(db=tmp_path / "db", port=0, intervals=3)) as server:
        assert isinstance(server, DevServer)
        await submit_copy(server.address, lake_of_files.__file__, "lake", tmp_path)
        await until(lambda: len(rows_in(tmp_path / "all", "number")) >= COUNT)
        await until(lambda: len(rows_in(tmp_path / "large", "double")) >= COUNT - 1_000)
        assert rows_in(tmp_path / "all", "number") == list(range(COUNT))
        assert rows_in(tmp_path / "large", "double") == [2 * number for number in range(1_000, COUNT)]
        assert sum(row["orders"] for row in await everything(server.address, "counts")) == COUNT
    assert sum(sent) >= 2 * COUNT, "the journal and the sinks have the columns"
    assert sum(made) < COUNT / 2, "few records were stored as values: the first ones, whose calls are small"
