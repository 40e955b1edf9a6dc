"""The reader of a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from millwheel.connectors.files.calls import on_thread
from millwheel.connectors.files.errors import FilesError, load_parquet
from millwheel.connectors.files.parsing import LineError
from millwheel.connectors.files.position import FilePosition, digest_of
from millwheel.connectors.files.records import PlaceFields, RecordType
from millwheel.connectors.files.storage import FileInfo, RangeFile, Storage
from millwheel.connectors.source import Read, SplitReader, UnreadRecord
from millwheel.connectors.table_reads import (
    TABLE_ROWS,
    JoinedTables,
    TableForm,
    TableRecords,
    plain_fields,
)
from millwheel.model.time import Timestamp

__all__ = ["READ_ROWS", "RowsReader"]

T = TypeVar("T")

READ_ROWS: Final = 1_000
_READ_BYTES: Final = 4 << 20
"""The most of one read, as far as rows are not larger than that."""
_FOOTER_BYTES: Final = 64 << 10
"""So many bytes at the end of a file identify it: there is where its columns are, with their sizes."""
_RAW_CHARACTERS: Final = 1_000
"""The most characters of a bad record."""


class RowsReader(SplitReader[T, FilePosition]):
    """Reads the rows of a file from a position on: the columns that the type has, batch by batch."""

    def __init__(
        self, storage: Storage, path: str, record_type: RecordType, columns: PlaceFields, position: FilePosition
    ) -> None:
        self._storage = storage
        self._path = path
        self._type = record_type
        self._columns = columns
        self._position = position
        self._batches: Iterator[Any] | None = None
        self._batch: Any = None
        """The rows that were decoded and not returned."""
        self._rows = 0
        fields = plain_fields(record_type.type)
        self._fields = None if isinstance(fields, str) else fields
        self._form: TableForm | None = None
        """How its rows become columns. None: each needs a value."""

    async def read(self) -> Read[T, FilePosition]:
        return await on_thread(self._read)

    async def close(self) -> None:
        self._batches = self._batch = None

    def _read(self) -> Read[T, FilePosition]:
        import pyarrow

        try:
            if self._batches is None:
                self._batches = self._open(self._storage.stat(self._path))
            if not self._batch:
                self._batch = next(self._batches, None)
        except (pyarrow.ArrowException, OSError, EOFError) as error:
            self._batches = None
            raise FilesError(
                f"{self._storage.name(self._path)} cannot be read as Parquet behind row {self._position.offset:,}: "
                f"{error}. Put a whole file in its place, or leave it out of the pattern"
            ) from error
        position = self._position
        records = self._taken(position.line + 1) if self._batch else []
        done = position.offset + len(records)
        self._position = FilePosition(done, done, digest=position.digest)
        if done >= self._rows:
            self._batches = self._batch = None
        return Read(
            records,
            self._position,
            ended=done >= self._rows,
            behind=self._rows - done,
            places=lambda index: f"row {position.line + 1 + index}",
        )

    def _taken(self, first: int) -> Sequence[tuple[Any, Timestamp | None]]:
        """The next records. ``first``: the number of the first one."""
        if self._takes_tables and self._form is not None and (table := self._table(self._form, first)) is not None:
            return table
        batch = self._batch
        sized = _READ_BYTES * len(batch) // max(batch.nbytes, 1)
        most = max(min(sized, READ_ROWS, self._type.most_records, self.most_records), 1)
        self._batch = batch[most:]
        return self._records(batch[:most], first)

    def _table(self, form: TableForm, first: int) -> TableRecords | None:
        """The next rows as columns: those of several batches, up to the first that needs values. None: that one."""
        rows, joined = list[Any](), JoinedTables(min(self.most_records, TABLE_ROWS))
        while self._batch and (room := joined.room):
            part = form.columns_of(self._batch[:room], self._path, first + joined.rows)
            if part is None or not joined.takes(part):
                break
            rows.append(self._batch[: len(part)])
            self._batch = self._batch[len(part) :] or self._next_batch()
        batch = joined.batch()
        return None if batch is None else TableRecords(batch, partial(self._records_of, rows, first), on_thread)

    def _next_batch(self) -> Any:
        """The next batch. None: there is none, or it cannot be decoded. Then the next read says so."""
        import pyarrow

        assert self._batches is not None
        try:
            return next(self._batches, None)
        except (pyarrow.ArrowException, OSError, EOFError):
            self._batches = None
            return None

    def _records_of(self, batches: Sequence[Any], first: int) -> list[tuple[Any, Timestamp | None]]:
        """The records of some batches, one after the other."""
        found: list[tuple[Any, Timestamp | None]] = []
        for batch in batches:
            found += self._records(batch, first + len(found))
        return found

    def _records(self, batch: Any, first: int) -> list[tuple[Any, Timestamp | None]]:
        """The records of some rows, without columns."""
        return [(self._record(number, row), None) for number, row in enumerate(_rows_of(batch), first)]

    def _open(self, info: FileInfo) -> Iterator[Any]:
        """The batches of rows from the position on."""
        name = self._storage.name(self._path)
        end = self._storage.read(info, max(info.size - _FOOTER_BYTES, 0), _FOOTER_BYTES)
        digest, position = digest_of(end, str(info.size).encode()), self._position
        if position.digest and digest != position.digest:
            raise FilesError(
                f"{name} is not the file of which {position.offset:,} rows were read. A file must not be replaced: put "
                "the former one back, and new content under a new name. If it is lost, read another stream, whose "
                "pattern leaves this file out"
            )
        self._position = FilePosition(position.offset, position.line, digest=digest)
        # Not whole columns of a group of rows: there may be many files.
        file = load_parquet().ParquetFile(RangeFile(self._storage, info), buffer_size=self._storage.chunk)
        self._rows = file.metadata.num_rows
        chosen = self._chosen(file, name)
        if self._fields is not None:
            self._form = self._form_of(file.schema_arrow, chosen)
        return self._batches_of(file, chosen)

    def _form_of(self, schema: Any, chosen: Sequence[str] | None) -> TableForm | None:
        """How the rows of a file become columns."""
        import pyarrow as pa

        assert self._fields is not None
        places = {self._columns.file: False, self._columns.line: True}
        places.pop("", None)
        there = [field for field in schema if chosen is None or field.name in chosen]
        numbers = [
            field.with_type(pa.int64())
            if pa.types.is_timestamp(field.type) and self._type.is_number(field.name)
            else field
            for field in there
        ]
        form = TableForm(self._fields, pa.schema(numbers), places)
        return form if form.fits else None

    def _chosen(self, file: Any, name: str) -> list[str] | None:
        """The columns that the type has. None: all."""
        if self._type.fields is None:
            return None
        there, own = set(file.schema_arrow.names), {self._columns.file, self._columns.line}
        if missing := sorted(self._type.required() - there - own):
            raise FilesError(
                f"{name} has no column {', '.join(missing)}: it has {', '.join(file.schema_arrow.names)}. Give the "
                "field a default, or leave the file out of the pattern"
            )
        return [field for field in self._type.fields if field in there and field not in own]

    def _batches_of(self, file: Any, chosen: list[str] | None) -> Iterator[Any]:
        skip = self._position.offset
        groups = list(range(file.metadata.num_row_groups))
        while groups and (size := file.metadata.row_group(groups[0]).num_rows) <= skip:
            del groups[0]
            skip -= size
        if not groups:
            return
        for batch in file.iter_batches(self._rows_at_once(file, groups, chosen), groups, chosen):
            if skip < len(batch):
                yield self._with_numbers(batch[skip:])
            skip = max(skip - len(batch), 0)

    def _rows_at_once(self, file: Any, groups: list[int], chosen: list[str] | None) -> int:
        """How many rows are decoded at a time. To decode many costs a fifth for each, and all of them are in memory.

        The first rows and the file's own sizes say how large a row is. Equal texts may have no size of their own there.
        """
        if self._form is None or not self._takes_tables:
            return READ_ROWS
        first = next(file.iter_batches(READ_ROWS, groups[:1], chosen), ())
        largest = first.nbytes // len(first) if first else 0
        for one in map(file.metadata.row_group, groups):
            largest = max(largest, one.total_byte_size // max(one.num_rows, 1))
        return int(max(READ_ROWS, min(_READ_BYTES // max(largest, 1), TABLE_ROWS)))

    def _with_numbers(self, batch: Any) -> Any:
        """The batch with its times in microseconds: as numbers where the type has numbers."""
        import pyarrow as pa

        if not batch.num_columns:
            return batch  # a batch without columns has rows, and one that is made of no arrays has none
        arrays = []
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_timestamp(array.type):
                # Python has no nanoseconds.
                array = array.cast(pa.timestamp("us", array.type.tz), safe=False)
                array = array.cast(pa.int64()) if self._type.is_number(name) else array
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)

    def _record(self, number: int, row: dict[str, Any] | UnicodeDecodeError) -> Any:
        if isinstance(row, UnicodeDecodeError):
            error = f"a text is no UTF-8 ({row.reason} at byte {row.start})"
            return UnreadRecord(self._path, f"row {number}", error, row.object[:_RAW_CHARACTERS])
        self._columns.add_to(row, self._path, number)
        try:
            return self._type.convert(row, texts=False)
        except LineError as error:
            raw = repr(row)[:_RAW_CHARACTERS].encode(errors="replace")
            return UnreadRecord(self._path, f"row {number}", str(error), raw)


def _rows_of(batch: Any) -> list[Any]:
    """The rows as dicts. That with a text of other bytes than UTF-8, which a file may have, is the error of that."""
    try:
        return list(batch.to_pylist())
    except UnicodeDecodeError as error:
        if len(batch) == 1:
            return [error]
    return [row for at in range(len(batch)) for row in _rows_of(batch[at : at + 1])]
