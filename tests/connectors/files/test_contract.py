"""Files keep the contract of connectors: lines, compressed lines and Parquet, read and written (G1, G13)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millwheel as mw
from millwheel.connectors import Sink, Source, read_files, write_files
from millwheel.testing.connectors import SinkContract, SourceContract
from tests.connectors.files.given import Sale, age, compressed, records_in, small_reads, without_syncs


class FilesUnderTest:
    """A folder, which can be away. Its files have a sale for each number."""

    ending: Any

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> Iterator[None]:
        self.folder = tmp_path / "lake"
        self.folder.mkdir()
        self.ended = False
        with without_syncs():
            yield

    def value(self, number: int) -> Sale:
        return Sale("tea", number)

    def number_of(self, value: Sale) -> int:
        return value.cents

    @contextmanager
    def away(self) -> Iterator[None]:
        """Something else has the name of the folder, such as the place where a disk is mounted."""
        elsewhere = self.folder.rename(self.folder.with_name("elsewhere"))
        self.folder.touch()
        yield
        self.folder.unlink()
        elsewhere.rename(self.folder)


class ReadFiles(FilesUnderTest, SourceContract[Sale, Any]):
    record_type = Sale

    def make_source(self) -> Source[Sale, Any]:
        return read_files(self.folder / f"*.{self.ending}", Sale, watch=not self.ended)

    def path(self, split: int) -> Path:
        return self.folder / f"{split}.{self.ending}"

    def end(self) -> None:
        self.ended = True


class ReadLines(ReadFiles):
    def write(self, split: int, numbers: Sequence[int]) -> None:
        self.append(split, b"".join(msgspec.json.encode(self.value(number)) + b"\n" for number in numbers))

    def write_bad(self, split: int) -> None:
        self.append(split, b"{\n")

    def append(self, split: int, content: bytes) -> None:
        path = self.path(split)
        with path.open("ab") as file:
            file.write(compressed(content, path.suffix))


@pytest.mark.guarantee("G1", "G13")
class TestGrowingLines(ReadLines):
    """The last change of a file that has ended is long ago."""

    ending = "jsonl"
    most_records = 100

    @pytest.fixture(autouse=True)
    def _small_reads(self) -> Iterator[None]:
        """A read has one or two of the lines that a test writes, so the bound of reads is tried below."""
        with small_reads(60):
            yield

    def make_source(self) -> Source[Sale, Any]:
        return read_files(self.folder / "*.jsonl", Sale, watch=not self.ended, follow=mw.hours(1))

    def end(self) -> None:
        super().end()
        for path in self.folder.iterdir():
            age(path, 3_601)


@pytest.mark.guarantee("G1", "G13")
class TestCompressedLines(ReadLines):
    ending = "jsonl.gz"
    splits_grow = False


@pytest.mark.guarantee("G1", "G13")
class TestRows(ReadFiles):
    ending = "parquet"
    splits_grow = False

    @pytest.fixture(autouse=True)
    def _rows(self) -> None:
        self.rows: dict[int, list[int | None]] = {}

    def write(self, split: int, numbers: Sequence[int | None]) -> None:
        rows = self.rows.setdefault(split, [])
        rows += numbers
        columns = {"item": ["tea"] * len(rows), "cents": pa.array(rows, pa.int64())}
        pq.write_table(pa.table(columns), self.path(split), row_group_size=5_000)

    def write_bad(self, split: int) -> None:
        self.write(split, [None])


class WriteFiles(FilesUnderTest, SinkContract[Sale]):
    record_type = Sale

    def make_sink(self) -> Sink[Sale]:
        return write_files(self.folder, Sale, format=self.ending)

    def stored(self) -> Sequence[int]:
        return [row["cents"] for row in records_in(self.folder)]


@pytest.mark.guarantee("G1", "G3", "G15")
class TestFilesOfLines(WriteFiles):
    ending = "jsonl"


@pytest.mark.guarantee("G1", "G3")
class TestPartitions(WriteFiles):
    """A batch has some files, and a process may die between them."""

    ending = "jsonl.gz"
    keeps_order = False

    def make_sink(self) -> Sink[Sale]:
        return write_files(self.folder, Sale, format="jsonl.gz", by="cents")


@pytest.mark.guarantee("G1", "G3", "G15")
class TestFilesOfRows(WriteFiles):
    ending = "parquet"
