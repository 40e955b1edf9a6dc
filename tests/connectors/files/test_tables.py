"""The rows of Parquet files as columns: the same records, and where they are not, rows (5.2; G1, G9)."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.connectors import BadRecord, FilesError, read_files
from millwheel.connectors.table_reads import TABLE_BYTES, TABLE_ROWS, TableRecords, plain_fields
from millwheel.rpc.columns import RecordColumns, exact
from tests.connectors.files.given import values_of
from tests.connectors.files.parquet import read_tables, write
from tests.connectors.given import at
from tests.patience import patience


class Row(msgspec.Struct, rename="camel"):
    item: str
    how_many: int
    at: mw.Timestamp
    price: float | None = 1.5
    sold: bool = True
    raw: bytes | None = None
    file: str = ""
    row: int = 0


def encoded(reads: list[Any]) -> list[bytes]:
    """The values of some reads, as streams have them. A bad record is what is said of it."""
    found: list[bytes] = []
    for read in reads:
        if isinstance(read.records, TableRecords):
            columns = RecordColumns(read.records.batch, read.records.times("", 0) or [])  # type: ignore[arg-type]
            assert not columns.why_unreadable
            found += RecordColumns.from_wire(columns.to_wire())
        else:
            found += map(msgspec.msgpack.encode, (value for value, _ in read.records))
    return found


texts = st.text(max_size=3)
numbers = st.integers(-(2**31), 2**31 - 1)


def column(values: st.SearchStrategy[Any], types: list[Any], nulls: bool) -> st.SearchStrategy[Any]:
    """Three values in a column of one of these types."""
    full = st.lists(values, min_size=3, max_size=3)
    items = st.one_of(full, full, st.lists(st.none() | values, min_size=3, max_size=3)) if nulls else full
    return st.builds(pa.array, items, st.sampled_from(types))


COLUMNS = st.fixed_dictionaries(
    {
        "item": column(texts, [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())], nulls=True),
        "howMany": column(numbers, [pa.int64(), pa.int32(), pa.float64()], nulls=True),
        "at": st.one_of(
            column(numbers, [pa.int64()], nulls=False),
            column(st.integers(0, 2**61), [pa.timestamp("ns"), pa.timestamp("us", "UTC")], nulls=True),
        ),
    },
    optional={
        "price": column(st.floats(allow_nan=False, width=16), [pa.float64(), pa.float32()], nulls=True),
        "sold": column(st.booleans(), [pa.bool_()], nulls=True),
        "raw": column(st.binary(max_size=3), [pa.binary(), pa.large_binary()], nulls=True),
        "other": column(texts, [pa.string()], nulls=True),
    },
)


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G9")
@settings(max_examples=60)
@given(columns=COLUMNS, most=st.integers(1, 4))
def test_rows_by_columns_have_the_bytes_of_records(
    tmp_path_factory: pytest.TempPathFactory, columns: dict[str, Any], most: int
) -> None:
    path = tmp_path_factory.mktemp("rows") / "a.parquet"
    write(path, columns, group=2)
    source = read_files(path, Row, file_field="file", line_field="row")
    expected = [msgspec.msgpack.encode(one) for one in values_of(source, "a.parquet")]
    assert encoded(read_tables(source, "a.parquet", most)) == expected


def plain(count: int) -> dict[str, Any]:
    return {
        "item": [f"item {at % 7}" for at in range(count)],
        "howMany": pa.array(range(count), pa.int32()),
        "at": pa.array([int(at(second)) for second in range(count)], pa.timestamp("us", "UTC")),
    }


def test_a_large_file_is_read_in_tables(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", plain(20_000))
    source = read_files(tmp_path / "a.parquet", Row, file_field="file", line_field="row")
    reads = read_tables(source, "a.parquet")
    assert all(isinstance(read.records, TableRecords) for read in reads)
    sizes = [len(read.records) for read in reads]
    assert all(TABLE_ROWS // 2 < size <= TABLE_ROWS for size in sizes[:-1])
    assert [read.behind for read in reads] == [20_000 - sum(sizes[: at + 1]) for at in range(len(sizes))]
    records = [value for read in reads for value, _ in read.records]
    assert records == values_of(source, "a.parquet")
    assert encoded(reads) == [msgspec.msgpack.encode(one) for one in records]


@pytest.mark.guarantee("G13")
def test_a_table_has_no_more_bytes_than_a_delivery(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {**plain(3_000), "item": ["x" * (at % 2_000) for at in range(3_000)]})
    reads = read_tables(read_files(tmp_path / "a.parquet", Row), "a.parquet")
    assert sum(len(read.records) for read in reads) == 3_000
    for read in reads:
        assert isinstance(read.records, TableRecords)
        size = RecordColumns(read.records.batch, read.records.times("", 0) or [])  # type: ignore[arg-type]
        assert size.average * (len(size) - 1) <= TABLE_BYTES
        assert all(buffer is None or buffer.size < 2 * TABLE_BYTES for buffer in read.records.batch.column(0).buffers())


@pytest.mark.guarantee("G1")
def test_rows_around_a_bad_one_are_columns_again(tmp_path: Path) -> None:
    count = 3 * TABLE_ROWS
    missing = pa.array([None if at == TABLE_ROWS + 5 else at for at in range(count)], pa.int64())
    write(tmp_path / "a.parquet", {**plain(count), "howMany": missing})
    reads = read_tables(read_files(tmp_path / "a.parquet", Row), "a.parquet")
    by_rows = [read for read in reads if not isinstance(read.records, TableRecords)]
    assert sum(len(read.records) for read in by_rows) <= 1_000
    (bad,) = [value for read in by_rows for value, _ in read.records if isinstance(value, BadRecord)]
    assert (bad.place, bad.error) == (f"row {TABLE_ROWS + 6}", "Expected `int`, got `null` - at `$.howMany`")
    assert sum(len(read.records) for read in reads) == count


def test_texts_that_are_no_utf_8_are_bad_records(tmp_path: Path) -> None:
    item = pa.array([b"tea", b"a\xff", b"jam"]).view(pa.string())
    write(tmp_path / "a.parquet", {**plain(3), "item": item})
    (read,) = read_tables(read_files(tmp_path / "a.parquet", Row), "a.parquet")
    first, bad, last = list[Any](value for value, _ in read.records)
    assert (first.item, last.item) == ("tea", "jam")
    assert (bad.split, bad.place, bad.raw) == ("a.parquet", "row 2", b"a\xff")
    assert bad.error == "a text is no UTF-8 (invalid start byte at byte 1)"


WIDE = msgspec.defstruct("WIDE", [(f"reading_{at:04}", float) for at in range(1_300)])


@pytest.mark.guarantee("G12")
def test_a_type_whose_schema_no_reader_takes_is_read_as_rows(tmp_path: Path) -> None:
    columns = {one.name: [1.5] * 3 for one in msgspec.structs.fields(WIDE)}
    write(tmp_path / "a.parquet", columns)
    source = read_files(tmp_path / "a.parquet", WIDE)
    (read,) = read_tables(source, "a.parquet")
    assert not isinstance(read.records, TableRecords)
    assert len(read.records) == 3
    why = source._why_one_by_one(WIDE)  # noqa: SLF001  # as `topology validate` does
    assert why.startswith("the schema of its 1,300 fields has 7")
    assert why.endswith("bytes, and 65,536 is the limit")


class Item(msgspec.Struct):
    item: str


class Limited(msgspec.Struct):
    item: Annotated[str, msgspec.Meta(max_length=2)]


class Dated(msgspec.Struct):
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)


class Short(msgspec.Struct, omit_defaults=True):
    item: str = ""


class Judging(msgspec.Struct):
    item: str

    def __post_init__(self) -> None:
        if not self.item:
            raise ValueError("no item")


class Empty(msgspec.Struct):
    pass


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Limited, "'item' of its records is no plain text"),
        (Dated, "'at' of its records is no plain text"),
        (Short, "leaves out defaults"),
        (Judging, "Judging is no plain struct"),
        (Empty, "has no fields"),
        (dict[str, Any], "is no plain struct"),
    ],
)
def test_types_that_columns_do_not_have_say_why(kind: Any, why: str) -> None:
    found = plain_fields(kind)
    assert isinstance(found, str)
    assert why in found


class Listed(msgspec.Struct):
    item: str
    tags: int = msgspec.field(default_factory=int)


def test_a_default_that_a_function_makes_needs_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"item": ["tea"]})
    (read,) = read_tables(read_files(tmp_path / "a.parquet", Listed), "a.parquet")
    assert list(read.records) == [(Listed("tea", 0), None)]
    assert not isinstance(read.records, TableRecords)


def test_tables_are_made_without_pandas(tmp_path: Path) -> None:
    """Loading it takes a third of a second, and much memory."""
    write(tmp_path / "a.parquet", plain(3))
    code = (
        "import sys; from tests.connectors.files.test_tables import *; from tests.connectors.files.parquet import *\n"
        f"source = read_files({str(tmp_path / 'a.parquet')!r}, Row, file_field='file', line_field='row')\n"
        "before = 'pandas' in sys.modules\n"
        "encoded(read_tables(source, 'a.parquet'))\n"
        "assert before == ('pandas' in sys.modules), 'pandas is loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=patience(120))


@pytest.mark.guarantee("G13")
def test_large_rows_are_decoded_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows may be large, and all that is decoded at a time is in memory."""
    decoded: list[int] = []
    iterate = pq.ParquetFile.iter_batches

    def counted(file: Any, *arguments: Any) -> Any:
        for batch in iterate(file, *arguments):
            decoded.append(len(batch))
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    write(tmp_path / "a.parquet", {**plain(3_000), "item": ["x" * 8_000] * 3_000})
    reads = read_tables(read_files(tmp_path / "a.parquet", Row), "a.parquet")
    assert sum(len(read.records) for read in reads) == 3_000
    assert max(decoded) <= 1_000
    assert all(isinstance(read.records, TableRecords) for read in reads)
    assert max(len(read.records) for read in reads) <= TABLE_BYTES // 8_000


def converted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows become columns at a time, from now on."""
    found: list[int] = []

    def counted(column: Any) -> Any:
        found.append(len(column))
        return exact(column)

    monkeypatch.setattr("millwheel.connectors.table_reads.exact", counted)
    return found


@pytest.mark.guarantee("G13")
def test_only_rows_that_fit_are_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows are small, so many rows are decoded at a time."""
    texts = ["short"] * 1_000 + ["x" * 8_000] * 7_000
    write(tmp_path / "a.parquet", {"item": texts})
    found = converted(monkeypatch)
    reads = read_tables(read_files(tmp_path / "a.parquet", Item), "a.parquet")
    assert sum(len(read.records) for read in reads) == 8_000
    assert all(isinstance(read.records, TableRecords) for read in reads)
    assert sum(found) < 4 * 8_000


def test_a_few_large_rows_are_read_as_rows(tmp_path: Path) -> None:
    texts = ["x" * 100_000] * 100 + ["short"] * 2_000
    write(tmp_path / "a.parquet", {"item": texts})
    reads = read_tables(read_files(tmp_path / "a.parquet", Item), "a.parquet")
    items = [one for read in reads for one, _ in read.records]
    assert items == [Item(text) for text in texts]
    assert [isinstance(read.records, TableRecords) for read in (reads[0], reads[-1])] == [False, True]


@pytest.mark.guarantee("G1")
def test_rows_before_a_damaged_page_are_read(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {**plain(6_000), "raw": [b"x" * 4_000] * 3_000 + [b""] * 3_000}, group=2_000)
    path = tmp_path / "a.parquet"
    whole = path.read_bytes()
    place = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    path.write_bytes(whole[:place] + b"\xff" * 40 + whole[place + 40 :])
    found: list[Any] = []
    with pytest.raises(FilesError, match=r"cannot be read as Parquet behind row 3,\d\d\d"):
        read_tables(read_files(path, Row), "a.parquet", found=found)
    assert 3_000 < sum(len(read.records) for read in found) < 4_000, "a batch may be of two groups"
