"""Small tables whose columns need no change: they are read in one step (section 5.2).

A table of a hundred rows costs as many calls of pyarrow as one of thousands. Most of these calls only look at the
table's schema. So the schema of the last table that needed no change is kept. A table with the same schema and a few
rows needs a look at its values alone: nulls, and texts that are no UTF-8.

Invariant: ``SmallTables.read`` gives the records that ``plain_table`` and ``table_parts`` would give, or None. It
raises nothing: a table with a fault is left to them, and they say what is wrong. Its columns are those of the caller:
who keeps the records copies them.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from millwheel.rpc.columns import RecordColumns, names_bytes, plain_types

__all__ = ["SmallTables"]

_MAX_ROWS: Final = 2_000
"""A table with more rows is read in the usual way: its calls are few for each row."""
_MAX_BYTES: Final = 256 << 10
_MAX_NAMES_BYTES: Final = 1 << 20
"""Bounds that a part of a table keeps in any case."""


class SmallTables:
    """Reads small tables. It remembers the last schema whose columns need no change."""

    def __init__(self) -> None:
        self._schema: Any = None
        self._timestamp = ""
        self._place = 0
        """The column of timestamps, by its name and its number."""
        self._others: list[tuple[int, str]] = []
        """The numbers and names of the other columns."""
        self._most = 0
        """The most rows of a small table with these columns."""

    def learn(self, data: Any, timestamp: str, plain: Any) -> None:
        """A table has become this ``plain_table``. If nothing changed, small tables like it are read from now on."""
        import pyarrow as pa

        if not isinstance(data, pa.Table | pa.RecordBatch) or self._is_known(data, timestamp):
            return
        *fields, times = plain.schema
        schema, types = data.schema, plain_types()
        kind = schema.field(timestamp).type
        if any(one.type not in types or schema.field(one.name).type != one.type for one in fields):
            return
        if kind == times.type or (pa.types.is_timestamp(kind) and kind.unit == "us"):
            self._schema, self._timestamp, self._place = schema, timestamp, schema.get_field_index(timestamp)
            self._others = [(schema.get_field_index(one.name), one.name) for one in fields]
            self._most = min(_MAX_ROWS, _MAX_NAMES_BYTES // names_bytes(schema.names))

    def _is_known(self, data: Any, timestamp: str) -> bool:
        return self._schema is not None and self._timestamp == timestamp and bool(data.schema == self._schema)

    def read(self, data: Any, timestamp: str) -> RecordColumns | None:
        """The records of a small table. None: it needs the usual way."""
        if self._schema is None:
            return None
        import pyarrow as pa

        if not isinstance(data, pa.Table | pa.RecordBatch) or not 0 < len(data) <= self._most:
            return None
        if not self._is_known(data, timestamp):
            return None
        batches = data.to_batches() if isinstance(data, pa.Table) else [data]
        if len(batches) != 1:
            return None
        batch = batches[0]
        times = batch.column(self._place)
        if times.null_count:
            return None
        try:
            batch.validate(full=True)
        except pa.ArrowException:
            return None
        stamps = array("q")
        first = stamps.itemsize * times.offset
        stamps.frombytes(memoryview(times.buffers()[1])[first : first + stamps.itemsize * len(times)])
        # Columns and names alone. Metadata may be large, and schemas that differ in it are equal.
        values = pa.RecordBatch.from_arrays(
            [batch.column(number) for number, _ in self._others], names=[name for _, name in self._others]
        )
        records = RecordColumns(values, stamps, "")
        return records if records.size <= _MAX_BYTES else None
