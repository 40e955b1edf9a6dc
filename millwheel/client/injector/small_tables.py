"""Small tables: they are read in few steps, because these cost the same however few rows there are (section 5.2).

Most of the usual steps only look at a table's schema. So the schema of the last table is kept, if its columns are of
plain types, or become so without a look at their values. A table with the same schema and a few rows needs a look at
its values alone: nulls, times, and texts that are no UTF-8.

Invariant: ``SmallTables.read`` gives the records that ``plain_table`` and ``table_parts`` would give, or None. It
raises nothing: a table with a fault is left to them, and they say what is wrong.

Invariant: a ``SmallTable`` has memory of its own. So a caller may change or free its buffers after the call.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from millwheel.rpc.columns import RecordColumns, extremes_in, in_one, names_bytes, plain_types

__all__ = ["SmallTable", "SmallTableLayout", "SmallTables"]

_MAX_ROWS: Final = 2_000
"""A table with more rows is read in the usual way: its calls are few for each row."""
_MAX_BYTES: Final = 256 << 10
_MAX_NAMES_BYTES: Final = 1 << 20
"""Bounds that a part of a table keeps in any case."""
_TIME_BYTES: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class SmallTableLayout:
    """How tables of one schema become records.

    Attributes:
        schema: The schema.
        timestamp: The name of the column of timestamps.
        place: Its number.
        numbers: The numbers of the other columns.
        names: Their names.
        casts: The columns that are of no plain type, each with its number, its type, and whether a value may not fit.
        most: The most rows of a small table.
        empty: A batch without rows. Its columns are of plain types, except that times may be of a type of timestamps.
    """

    schema: Any
    timestamp: str
    place: int
    numbers: Sequence[int]
    names: list[str]
    casts: Sequence[tuple[int, Any, bool]]
    most: int
    empty: Any

    def copied(self, batch: Any) -> SmallTable | None:
        """The table of a batch of this schema, whose values are valid. None: it is large, or has a row without a time.

        Raises:
            ArrowException: A value does not fit into the type of its column.
        """
        import pyarrow as pa

        if self.casts:
            columns = batch.columns
            for number, kind, safe in self.casts:
                columns[number] = columns[number].cast(kind, safe=safe)
            batch = pa.RecordBatch.from_arrays(columns, schema=self.empty.schema)
        # The bytes of the rows alone cost more to find than the copy. Columns may share buffers.
        if batch.get_total_buffer_size() * batch.num_columns > _MAX_BYTES and batch.nbytes > _MAX_BYTES:
            return None
        own = in_one((self.empty, batch))
        size = own.get_total_buffer_size() - _TIME_BYTES * batch.num_rows
        columns = own.columns
        times = columns[self.place]
        return None if times.null_count else SmallTable(self, own, columns, size, extremes_in(times.buffers()[1]))

    def records(self, batches: Sequence[Any]) -> RecordColumns:
        """The records of batches of small tables, one table after the other. There is at least one."""
        import pyarrow as pa

        whole = batches[0] if len(batches) == 1 else in_one(batches)
        columns, stamps = whole.columns, array("q")
        stamps.frombytes(columns[self.place].buffers()[1])
        # Columns and names alone. Metadata may be large, and schemas that differ in it are equal.
        values = pa.RecordBatch.from_arrays([columns[number] for number in self.numbers], names=self.names)
        return RecordColumns(values, stamps)


class SmallTable:
    """A table of a few rows, in memory of its own.

    Attributes:
        layout: How it becomes records.
        batch: Its columns, with that of the timestamps.
        columns: The same.
        count: The number of its rows.
        size: The size of its columns without the timestamps, in bytes.
        oldest: The least timestamp, in microseconds.
        newest: The greatest timestamp, in microseconds.
    """

    __slots__ = ("batch", "columns", "count", "layout", "newest", "oldest", "size")

    def __init__(
        self, layout: SmallTableLayout, batch: Any, columns: Sequence[Any], size: int, extremes: tuple[int, int]
    ) -> None:
        self.layout = layout
        self.batch = batch
        self.columns = columns
        self.size = size
        self.count: int = batch.num_rows
        self.oldest, self.newest = extremes

    def __len__(self) -> int:
        return self.count

    def records(self) -> RecordColumns:
        """Its records."""
        return self.layout.records((self.batch,))


class SmallTables:
    """Reads small tables. It remembers the last layout."""

    def __init__(self) -> None:
        self._layout: SmallTableLayout | None = None

    def learn(self, data: Any, timestamp: str) -> None:
        """``plain_table`` has taken this table or record batch. From now on small tables like it are read."""
        if not self._is_known(data, timestamp):
            self._layout = _layout_of(data.schema, timestamp) or self._layout

    def _is_known(self, data: Any, timestamp: str) -> bool:
        known = self._layout
        return known is not None and known.timestamp == timestamp and bool(data.schema == known.schema)

    def read(self, data: Any, timestamp: str) -> SmallTable | None:
        """A small table, of a table or record batch. None: it needs the usual way."""
        layout = self._layout
        if layout is None or not 0 < data.num_rows <= layout.most or not self._is_known(data, timestamp):
            return None
        import pyarrow as pa

        if isinstance(data, pa.Table):
            batches = data.to_batches()
            if len(batches) != 1:
                return None
            data = batches[0]
        try:
            data.validate(full=True)
            return layout.copied(data)
        except pa.ArrowException:
            return None


def _layout_of(schema: Any, timestamp: str) -> SmallTableLayout | None:
    """The layout of a schema that ``plain_table`` takes. None: a column needs a look at its values."""
    import pyarrow as pa

    place = schema.get_field_index(timestamp)
    fields, casts = [], list[tuple[int, Any, bool]]()
    for number, field in enumerate(schema):
        kind = field.type
        wanted = _time_type(kind) if number == place else _plain_type(kind)
        if wanted is None:
            return None
        if wanted != kind:
            casts.append((number, wanted, number != place or kind.unit != "ns"))
        fields.append(pa.field(field.name, wanted, field.nullable))
    numbers = [number for number in range(len(fields)) if number != place]
    names = [fields[number].name for number in numbers]
    most = min(_MAX_ROWS, _MAX_NAMES_BYTES // names_bytes(schema.names))
    # A list as the source of an array would load pandas.
    nothing = [pa.nulls(0, field.type) for field in fields]
    empty = pa.RecordBatch.from_arrays(nothing, schema=pa.schema(fields))
    return SmallTableLayout(schema, timestamp, place, numbers, names, tuple(casts), most, empty)


def _time_type(kind: Any) -> Any:
    """The type whose values are microseconds in memory."""
    import pyarrow as pa

    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind


def _plain_type(kind: Any) -> Any:
    """The plain type that ``plain_table`` gives a column of this type, without a look at its values. None: another."""
    import pyarrow as pa

    types = pa.types
    if kind in plain_types():
        return kind
    if types.is_integer(kind) and kind != pa.uint64():
        return pa.int64()
    if kind == pa.float32():
        return pa.float64()
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    return None
