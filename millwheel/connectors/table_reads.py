"""What a source reads as columns of Arrow: the rows of a file, without a value for each (5.2; G1).

Invariant (G1, G9): a row by columns has the very value that it has as a record: the same fields, each of the same type,
in the same order. What columns cannot have exactly is left to records: a reader then returns these.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, overload

import msgspec

from millwheel.model.time import Timestamp
from millwheel.rpc.column_keys import integers_of
from millwheel.rpc.columns import SCHEMA_BYTES, exact, has_columns, plain_types, schema_bytes
from millwheel.sdk.column_fields import COLUMN_TYPES, encoded_fields
from millwheel.sdk.exact_types import behind, unless_none

__all__ = [
    "TABLE_BYTES",
    "TABLE_ROWS",
    "JoinedTables",
    "PlainField",
    "TableForm",
    "TableRecords",
    "plain_fields",
]

TABLE_ROWS: Final = 8_192
"""The most rows of a read by columns: a delivery has as many."""
TABLE_BYTES: Final = 1 << 20
"""The most bytes of a read by columns, with the names of the columns in each row. A delivery has as many (G13)."""

_PART_ROWS: Final = 1_024
"""A read by columns ends if fewer rows fit."""
_FEW_ROWS: Final = 100
"""If fewer rows than these are as many bytes as a read may have, they are records. These cost no more then."""

Records = list[tuple[Any, Timestamp | None]]


class PlainField(NamedTuple):
    """A field of a stream's type that a column may have."""

    name: str
    """As it is stored, and as a file has it."""
    attribute: str
    """As Python has it."""
    kind: type
    """The type of its values that are not None."""
    takes_null: bool
    default: Any
    """``msgspec.NODEFAULT``: a file needs the column."""


def plain_fields(record_type: Any) -> list[PlainField] | str:
    """The fields of a type, if columns may have them all. A text: why not.

    >>> class Bid(msgspec.Struct):
    ...     item: str
    ...     cents: int | None = None
    >>> [(one.name, one.kind, one.takes_null) for one in plain_fields(Bid)]
    [('item', <class 'str'>, False), ('cents', <class 'int'>, True)]
    """
    fields = encoded_fields(record_type)
    if isinstance(fields, str):
        return fields
    found: list[PlainField] = []
    for one in fields:
        present = unless_none(one.type)
        kind = behind(one.type if present is None else present)
        if kind not in COLUMN_TYPES:
            return f"the field {one.name!r} of its records is no plain text, number or truth value"
        found.append(PlainField(one.encode_name, one.name, kind, present is not None, one.default))
    if has_columns() and (size := schema_bytes(_schema_of(found))) > SCHEMA_BYTES:
        return f"the schema of its {len(found):,} fields has {size:,} bytes, and {SCHEMA_BYTES:,} is the limit"
    return found


class TableRecords(Sequence[tuple[Any, Timestamp | None]]):
    """What a read has as columns. It makes records where these are needed.

    Args:
        batch: A record batch of Arrow. Its columns are those of ``plain_fields``.
        make: Makes the records of the read, each as it would be without columns.
        run: Runs a function that takes long on a thread.
        times: The times of the rows, if the source says them. None: the time of a row is in a column, or that of the
            read.
    """

    def __init__(
        self,
        batch: Any,
        make: Callable[[], Records],
        run: Callable[[Callable[[], Records]], Awaitable[Records]],
        times: array[int] | None = None,
    ) -> None:
        self.batch = batch
        self._times = times
        self._make = make
        self._run = run
        self._records: Records | None = None

    async def load(self) -> None:
        """Make the records, on a thread."""
        if self._records is None:
            self._records = await self._run(self._make)

    def times(self, field: str, began: int) -> array[int] | None:
        """The time of each record. None: a row has no time in its column.

        Args:
            field: The column that has the times. Empty: the program names none.
            began: The time of the read.
        """
        if field:
            return _times_in(self.batch, field)
        return array("q", [began]) * len(self) if self._times is None else self._times

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @overload
    def __getitem__(self, index: int) -> tuple[Any, Timestamp | None]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[Any, Timestamp | None]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if self._records is None:
            self._records = self._make()
        return self._records[index]


class TableForm:
    """How the columns of a file become those of a type's fields.

    Args:
        fields: Those of the type.
        schema: The columns of the file, in which times are numbers where the type has some.
        places: By field that the file does not have: whether it gets the number of the row, or the name of the file.
    """

    def __init__(self, fields: Sequence[PlainField], schema: Any, places: Mapping[str, bool]) -> None:
        self._fields = fields
        self._there = set(schema.names)
        self._places = places
        self.fits = all(self._has(field, schema) for field in fields)
        """Whether rows may be columns. Otherwise each needs a value."""
        self._most = _PART_ROWS
        """So many rows are converted at a time: twice as many as fitted last.

        Invariant (G13): what a read converts follows what it returns, and not what is decoded. Rows may be large.
        """

    def _has(self, field: PlainField, schema: Any) -> bool:
        if field.name in self._places:
            return field.kind is (int if self._places[field.name] else str)
        if field.name in self._there:
            return schema.names.count(field.name) == 1 and _becomes(field.kind, schema.field(field.name).type)
        if field.default is msgspec.NODEFAULT:
            return False
        return field.takes_null if field.default is None else type(field.default) is field.kind

    def columns_of(self, batch: Any, name: str, first: int) -> Any:
        """A record batch of as many of the first rows as a read may have. None: they need values, or are large.

        Args:
            batch: Rows of the file.
            name: The file.
            first: The number of the first row.
        """
        import pyarrow as pa

        count = min(batch.num_rows, self._most)
        columns = []
        try:
            for field in self._fields:
                column = self._column(field, batch, name, range(first, first + count))
                if column.null_count and not field.takes_null:
                    return None
                columns.append(column)
        except (pa.ArrowException, OverflowError):  # a number or text that no column can have
            return None
        found = _within(pa.RecordBatch.from_arrays(columns, names=[one.name for one in self._fields]))
        fitted = found.num_rows if found is not None else 1
        self._most = min(2 * (fitted if fitted < count else self._most), TABLE_ROWS)
        return found if fitted == count or fitted >= _FEW_ROWS else None

    def _column(self, field: PlainField, batch: Any, name: str, numbers: range) -> Any:
        import pyarrow as pa

        wanted = _arrow_type(field.kind)
        if field.name in self._places:
            if self._places[field.name]:
                return integers_of(array("q", numbers))
            return _repeated(name, wanted, len(numbers))
        if field.name not in self._there:
            if field.default is None:
                return pa.nulls(len(numbers), wanted)
            return _repeated(field.default, wanted, len(numbers))
        column = batch.column(batch.schema.get_field_index(field.name)).slice(0, len(numbers))
        column = column if column.type == wanted else column.cast(wanted)
        if field.kind is str:
            column.validate(full=True)  # files of Parquet may have any bytes there
        return exact(column)


def _within(batch: Any) -> Any:
    """As many of the first rows as a read by columns may have, in buffers of their own. None: a row is too large."""
    import pyarrow as pa

    count = batch.num_rows
    while (size := _size_of(batch)) > TABLE_BYTES:
        if batch.num_rows <= 1:
            return None
        # The first rows may be larger than the others. So the average alone could take many steps.
        batch = batch.slice(0, max(min(batch.num_rows * 15 // 16, batch.num_rows * TABLE_BYTES // size), 1))
    if batch.num_rows == count:
        return batch
    return pa.RecordBatch.from_arrays([exact(column) for column in batch.columns], names=batch.schema.names)


class JoinedTables:
    """A read by columns that is made of several parts of a file. ``most``: the most rows."""

    def __init__(self, most: int) -> None:
        self.rows = 0
        self._most = most
        self._parts: list[Any] = []
        self._bytes = self._largest = 0

    @property
    def room(self) -> int:
        """How many rows fit, unless they have too many bytes. 0: another part is likely not to fit."""
        room = self._most - self.rows
        if self._parts and (room < min(_PART_ROWS, self._most) or self._bytes + self._largest > TABLE_BYTES):
            return 0
        return room

    def takes(self, part: Any) -> bool:
        """Add a part. False: it does not fit, and nothing is added."""
        size = _size_of(part)
        if self._bytes + size > TABLE_BYTES:
            return False
        self._parts.append(part)
        self.rows += part.num_rows
        self._bytes += size
        self._largest = max(self._largest, size)
        return True

    def batch(self) -> Any:
        """All rows in one record batch. None: there are none."""
        if len(self._parts) <= 1:
            return self._parts[0] if self._parts else None
        import pyarrow as pa

        columns = [pa.concat_arrays(some) for some in zip(*(one.columns for one in self._parts), strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self._parts[0].schema)


def _size_of(batch: Any) -> int:
    """The bytes of columns, with their names in each row."""
    names = sum(len(name.encode()) for name in batch.schema.names)
    return int(batch.nbytes) + names * int(batch.num_rows)


def _times_in(batch: Any, field: str) -> array[int] | None:
    """The times in a column of numbers. None: it has nulls."""
    column = batch.column(field)
    if column.null_count:
        return None
    times = array("q")
    times.frombytes(memoryview(column.buffers()[1])[8 * column.offset :][: 8 * len(column)])
    return times


def _repeated(value: Any, wanted: Any, count: int) -> Any:
    """A column of so many equal values. pyarrow's own way to make one loads pandas, if it is installed."""
    import pyarrow as pa

    if isinstance(value, str | bytes):
        content = value if isinstance(value, bytes) else value.encode()
        buffers = [array("i", [0, len(content)]), content]
    else:
        buffers = [
            bytes([value]) if isinstance(value, bool) else array("d" if isinstance(value, float) else "q", [value])
        ]
    one = pa.Array.from_buffers(wanted, 1, [None, *map(pa.py_buffer, buffers)])
    return one.take(integers_of(array("q", bytes(8 * count))))


def _schema_of(fields: Sequence[PlainField]) -> Any:
    import pyarrow as pa

    return pa.schema([(field.name, _arrow_type(field.kind)) for field in fields])


def _arrow_type(kind: type) -> Any:
    return next(found for found, plain in plain_types().items() if plain is kind)


def _becomes(kind: type, given: Any) -> bool:
    """Whether each value of a type of Arrow has the same value in the plain column of a kind, or is refused there."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(given) and kind is str:
        given = given.value_type
    if kind is int:
        return bool(types.is_integer(given))
    if kind is float:
        return bool(types.is_float32(given) or types.is_float64(given))
    if kind is str:
        return bool(types.is_string(given) or types.is_large_string(given))
    if kind is bytes:
        return bool(types.is_binary(given) or types.is_large_binary(given))
    return bool(types.is_boolean(given))
