"""A table from an injector to files of Parquet: by columns all the way, each row once (4.3, 5.2)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millwheel.client.injector import Injector
from millwheel.server.dev_server import DevServer, DevSettings, running
from tests.injectors import lake_shop
from tests.injectors.by_columns import sent_by_columns, stored_as_values
from tests.injectors.test_with_server import everything
from tests.patience import until
from tests.submitting import submit_copy

COUNT = 20_000
TABLE = pa.table(
    {
        "user": [f"user-{number % 7}" for number in range(COUNT)],
        "number": range(COUNT),
        "at": [1_000_000 + number for number in range(COUNT)],
    }
)


def rows_in(folder: Path, name: str) -> list[int]:
    """The numbers in files of the folder, in the order of batches."""
    files = sorted(folder.glob("*.parquet"), key=lambda path: path.name)
    return [one for path in files for one in pq.read_table(path).column(name).to_pylist()]


@pytest.mark.guarantee("G1", section="4.3")
async def test_a_table_goes_to_files_by_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLWHEEL_TEST_LAKE", str(tmp_path / "lake"))
    sent, made = sent_by_columns(monkeypatch), stored_as_values(monkeypatch)
    async with running(DevSettings(db=tmp_path / "db", port=0, intervals=3)) as server:
        assert isinstance(server, DevServer)
        await submit_copy(server.address, lake_shop.__file__, "lake", tmp_path)
        async with Injector("orders", address=server.address) as injector:
            for at in range(0, 2_000, 100):
                await injector.send_table(TABLE.slice(at, 100), timestamp="at")
            await injector.send_table(TABLE.slice(2_000), timestamp="at")
            await injector.finish()
            assert (injector.by_columns, injector.by_rows) == (COUNT, 0)
        lake = tmp_path / "lake"
        await until(lambda: len(rows_in(lake / "all", "number")) >= COUNT)
        await until(lambda: len(rows_in(lake / "large", "double")) >= COUNT - 1_000)
        assert rows_in(lake / "all", "number") == list(range(COUNT))
        assert rows_in(lake / "large", "double") == [2 * number for number in range(1_000, COUNT)]
        assert sum(row["orders"] for row in await everything(server.address, "counts")) == COUNT
    assert sum(sent) >= 3 * COUNT, "two sinks and a window have the columns"
    assert sum(made) < COUNT / 2, "few records were stored as values: the first ones, whose calls are small"
