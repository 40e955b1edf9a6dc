"""Converts Arrow batches to records: mappings of a row's columns, with ids and timestamps. Pure.

Every timestamp in a row becomes integer microseconds since 1970. Other values keep a form that msgpack supports.
Columns are converted as a whole, which is several times faster than row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from millwheel.client.injector.likelihood import is_likely, unlikely
from millwheel.injectors.spark.errors import RowError
from millwheel.injectors.spark.options import SinkOptions
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["RowReader", "Rows"]


_IN_UNITS: Final = {
    "s": "timestamp_seconds(column)",
    "ms": "timestamp_millis(column)",
    "us": "timestamp_micros(column)",
    "ns": "timestamp_micros(column div 1000)",
}
_MEANT: Final = "set option 'any_timestamp' to true"


@dataclass(frozen=True, slots=True)
class Rows:
    """Records as columns of equal length.

    ``newest``: the largest value of the watermark's column, in microseconds. ``first_row``: the number of the first row
    within the partition."""

    values: list[dict[str, Any]]
    ids: list[str | bytes | int]
    timestamps: list[int]
    newest: int
    first_row: int


class RowReader:
    """Reads one partition's Arrow batches. It counts the rows, so that an error can name the row."""

    def __init__(self, options: SinkOptions, partition: int, now: int) -> None:
        """``now``: the clock's time, in microseconds, to judge which times are plausible."""
        self._options = options
        self._partition = partition
        self._now = now
        self._row = 0

    def read(self, batch: pa.RecordBatch) -> Rows:
        """Convert the rows of a batch that is not empty. RowError names a row that cannot become a record."""
        options = self._options
        names = batch.schema.names
        columns = {name: _plain(batch.column(at)) for at, name in enumerate(names)}
        ids, first = columns[options.id_column], self._row
        self._row += batch.num_rows
        self._refuse(ids, ids, first, options.id_column, "the id is", _no_id)
        for name in {options.timestamp_column, options.watermark_source}:
            self._refuse(ids, columns[name], first, name, "the time is", _no_time)
            if not options.any_timestamp:
                self._refuse_unlikely(ids, columns[name], first, name)
        values = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        newest = max(columns[options.watermark_source])
        return Rows(values, ids, columns[options.timestamp_column], newest, first)

    def error(self, rows: Rows, at: int, why: str) -> RowError:
        """The error for row ``at`` of ``rows``."""
        return RowError(self._options.stream, _shown(rows.ids[at]), self._partition, rows.first_row + at, why)

    def _refuse(self, ids: Sequence[Any], column: Sequence[Any], first: int, name: str, what: str, bad: Any) -> None:
        at = next((index for index, value in enumerate(column) if bad(value)), None)
        if at is not None:
            why = f"column {name!r}: {what} {'null' if column[at] is None else repr(column[at])}"
            raise RowError(self._options.stream, _shown(ids[at]), self._partition, first + at, why)

    def _refuse_unlikely(self, ids: Sequence[Any], column: Sequence[int], first: int, name: str) -> None:
        at = next((index for index, value in enumerate(column) if not is_likely(value, self._now)), None)
        if at is not None:
            why = f"column {name!r}: {unlikely(column[at], self._now, _IN_UNITS, _MEANT)}"
            raise RowError(self._options.stream, _shown(ids[at]), self._partition, first + at, why)


def _no_id(value: Any) -> bool:
    return value is None or value in ("", b"")


def _no_time(value: Any) -> bool:
    return value is None or not MIN_TIMESTAMP < value < MAX_TIMESTAMP


def _shown(id_: Any) -> str | None:
    if id_ is None:
        return None
    return id_.hex() if isinstance(id_, bytes) else str(id_)


def _plain(column: pa.Array) -> list[Any]:
    """A column as Python values that msgpack supports."""
    wanted = _with_whole_times(column.type)
    if wanted != column.type:
        column = column.cast(wanted)
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return values


def _with_whole_times(kind: pa.DataType) -> pa.DataType:
    """The type with each timestamp replaced by a 64-bit integer. Spark's Arrow timestamps are microseconds of UTC."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_whole_times(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_with_whole_times(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_whole_times(field.type)) for field in kind])
    return kind
