"""Parquet files as a source (5.2, 6.1)."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millwheel as mw
from millwheel.connectors import FilesError, read_files
from tests.connectors.files.given import Sale, bad_of, read_on, records_of, values_of
from tests.connectors.given import at


class Trip(msgspec.Struct):
    at: mw.Timestamp
    begun: datetime
    fare: Decimal
    tip: float | None = None
    file: str = ""
    row: int = 0


def test_rows_are_records_of_their_type(tmp_path: Path) -> None:
    begun = datetime(2026, 1, 1, 12, tzinfo=UTC)
    columns = {
        "at": pa.array([int(at(1)) * 1_000 + 7, int(at(2)) * 1_000], pa.timestamp("ns")),
        "begun": pa.array([begun, begun], pa.timestamp("ms", "UTC")),
        "fare": pa.array([Decimal("1.50"), Decimal("2.00")]),
        "tip": pa.array([None, 0.5]),
        "other": pa.array(["x", "y"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    source = read_files(tmp_path / "*.parquet", Trip, file_field="file", line_field="row")
    assert values_of(source, "a.parquet") == [
        Trip(at(1), begun, Decimal("1.50"), None, "a.parquet", 1),
        Trip(at(2), begun, Decimal("2.00"), 0.5, "a.parquet", 2),
    ]


class Place(msgspec.Struct):
    file: str
    row: int = 0


def test_rows_without_a_column_of_the_type_are_records(tmp_path: Path) -> None:
    pq.write_table(pa.table({"other": ["x", "y", "z"]}), tmp_path / "a.parquet", row_group_size=2)
    source = read_files(tmp_path / "a.parquet", Place, file_field="file", line_field="row")
    assert values_of(source, "a.parquet") == [Place("a.parquet", row) for row in (1, 2, 3)]


def sales(path: Path, cents: list[int | None], group: int = 10_000) -> None:
    items = [f"item {number % 7}" for number in range(len(cents))]
    pq.write_table(pa.table({"item": items, "cents": pa.array(cents, pa.int64())}), path, row_group_size=group)


@pytest.mark.parametrize("rows", [0, 1, 999, 1_000, 5_600])
@pytest.mark.guarantee("G1")
def test_a_file_is_opened_again_at_each_read(tmp_path: Path, rows: int) -> None:
    sales(tmp_path / "a.parquet", list(range(rows)), group=1_700)
    source = read_files(tmp_path / "a.parquet", Sale)
    for reopened in (False, True):
        reads = list(read_on(source, "a.parquet", reopen=lambda read, reopened=reopened: reopened))  # type: ignore[misc]
        assert [value.cents for value in records_of(reads)] == list(range(rows))
        assert reads[-1].ended
        assert [read.behind for read in reads if not read.ended] == [rows - read.position.offset for read in reads[:-1]]


def test_a_row_of_another_type_is_bad(tmp_path: Path) -> None:
    sales(tmp_path / "a.parquet", [1, None, 3])
    values = values_of(read_files(tmp_path / "a.parquet", Sale), "a.parquet")
    assert [one.cents for one in values if isinstance(one, Sale)] == [1, 3]
    assert bad_of(values) == [("row 2", "Expected `int`, got `null` - at `$.cents`")]


@pytest.mark.guarantee("G1")
def test_a_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    sales(path, list(range(3_000)))
    source, content = read_files(path, Sale), path.read_bytes()
    read = next(iter(read_on(source, "a.parquet")))
    sales(path, list(range(1, 3_001)))
    with pytest.raises(FilesError, match="is not the file of which 1,000 rows were read"):
        list(read_on(source, "a.parquet", read.position))
    path.write_bytes(content)
    assert len(values_of(source, "a.parquet", read.position)) == 2_000


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 100, b"PAR1" + b"\0" * 60 + b"\xff\0\0\0PAR1"])
def test_what_is_no_parquet_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(FilesError, match=r"a\.parquet cannot be read as Parquet"):
        list(read_on(read_files(tmp_path / "a.parquet", Sale), "a.parquet"))


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"item": ["tea"]}), tmp_path / "a.parquet")
    with pytest.raises(FilesError, match="has no column cents: it has item"):
        list(read_on(read_files(tmp_path / "a.parquet", Sale), "a.parquet"))


def test_large_rows_come_in_small_reads(tmp_path: Path) -> None:
    rows: dict[str, Any] = {"item": ["x" * 100_000] * 200, "cents": [1] * 200}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    reads = list(read_on(read_files(tmp_path / "a.parquet", Sale), "a.parquet"))
    assert sum(len(read.records) for read in reads) == 200
    assert max(len(read.records) for read in reads) <= 42
