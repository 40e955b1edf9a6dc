"""Converts Arrow batches to records: mappings of a row's columns, with ids and timestamps. Pure.

Every timestamp in a row becomes integer microseconds since 1970, and dates and decimals become texts. Other values keep
a form that MessagePack has, or that msgspec makes one of: times without a zone, times of a day and intervals.
Plain columns stay columns, and are sent as such. An object is made for a row only if it has lists or mappings.
"""

from __future__ import annotations

from datetime import date
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

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
_FIRST_DAY: Final = (date.min - date(1970, 1, 1)).days
_LAST_DAY: Final = (date.max - date(1970, 1, 1)).days
_ODD_DATE: Final = (
    "a date is before the year 1 or after 9999, which no date of Python is: correct it, or make it a string or a "
    "number by a cast"
)


_PLAIN: Final = frozenset(
    {
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    }
)
"""The types of columns that are sent as columns."""


class Rows:
    """Rows of one Arrow batch.

    Attributes:
        batch: The rows. Times in it are integers.
        newest: The largest value of the watermark's column, in microseconds.
        first_row: The number of the first row within the partition.
    """

    def __init__(self, options: SinkOptions, batch: pa.RecordBatch, first_row: int) -> None:
        self.batch = batch
        self.newest: int = 0
        self.first_row = first_row
        self._options = options

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def row(self, at: int) -> Rows:
        """One row by itself."""
        return Rows(self._options, self.batch.slice(at, 1), self.first_row + at)

    @cached_property
    def ids(self) -> list[Any]:
        """The users' ids."""
        return _pylist(self.batch.column(self._options.id_column))

    @cached_property
    def timestamps(self) -> list[Any]:
        """The event times, in microseconds."""
        return _pylist(self.batch.column(self._options.timestamp_column))

    @cached_property
    def values(self) -> list[dict[str, Any]]:
        """The rows as mappings."""
        names, columns = self.batch.schema.names, map(_pylist, self.batch.columns)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    @cached_property
    def are_plain(self) -> bool:
        """Whether they may be sent as columns: none has lists or mappings."""
        return _PLAIN.issuperset(self.batch.schema.types)


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
        given = batch.columns  # the batch makes them at each access
        columns = list(map(_in_stored_form, given))
        rows = Rows(options, pa.RecordBatch.from_arrays(columns, names=batch.schema.names), self._row)
        self._row += len(rows)
        self._refuse_odd_dates(rows, batch.schema.names, given, columns)
        ids = rows.batch.column(options.id_column)
        if ids.null_count or (not pa.types.is_integer(ids.type) and not pc.min(pc.binary_length(ids)).as_py()):
            self._refuse(rows, options.id_column, "the id is", _no_id)
        newest = {name: self._newest(rows, name) for name in {options.timestamp_column, options.watermark_source}}
        rows.newest = newest[options.watermark_source]
        return rows

    def error(self, rows: Rows, at: int, why: str) -> RowError:
        """The error for row ``at`` of ``rows``."""
        return RowError(self._options.stream, _shown(rows.ids[at]), self._partition, rows.first_row + at, why)

    def _newest(self, rows: Rows, name: str) -> int:
        """The largest time of a column. RowError if there is a null, or a time that is not allowed."""
        times = rows.batch.column(name)
        found = pc.min_max(times)
        least, greatest = found["min"].as_py(), found["max"].as_py()
        if times.null_count or not MIN_TIMESTAMP < least <= greatest < MAX_TIMESTAMP:
            self._refuse(rows, name, "the time is", _no_time)
        if not self._options.any_timestamp and not (is_likely(least, self._now) and is_likely(greatest, self._now)):
            self._refuse_unlikely(rows, name)
        return int(greatest)

    def _refuse(self, rows: Rows, name: str, what: str, bad: Any) -> None:
        column = _pylist(rows.batch.column(name))
        at = next(index for index, value in enumerate(column) if bad(value))
        raise self.error(rows, at, f"column {name!r}: {what} {'null' if column[at] is None else repr(column[at])}")

    def _refuse_odd_dates(self, rows: Rows, names: list[str], given: list[pa.Array], stored: list[pa.Array]) -> None:
        """RowError for a date whose text no field of the type ``date`` takes. It would fail in the cluster only."""
        for name, column, same in zip(names, given, stored, strict=True):
            if column is not same and _has_odd_dates(column):
                at = next(index for index in range(len(column)) if _has_odd_dates(column.slice(index, 1)))
                raise self.error(rows, at, f"column {name!r}: {_ODD_DATE}")

    def _refuse_unlikely(self, rows: Rows, name: str) -> None:
        column = _pylist(rows.batch.column(name))
        at = next(index for index, value in enumerate(column) if not is_likely(value, self._now))
        raise self.error(rows, at, f"column {name!r}: {unlikely(column[at], self._now, _IN_UNITS, _MEANT)}")


def _no_id(value: Any) -> bool:
    return value is None or value in ("", b"")


def _no_time(value: Any) -> bool:
    return value is None or not MIN_TIMESTAMP < value < MAX_TIMESTAMP


def _shown(id_: Any) -> str | None:
    if id_ is None:
        return None
    return id_.hex() if isinstance(id_, bytes) else str(id_)


def _pylist(column: pa.Array) -> list[Any]:
    """A column as Python values that msgspec encodes."""
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return values


def _in_stored_form(column: pa.Array) -> pa.Array:
    wanted = _stored_type(column.type)
    return column if wanted == column.type else column.cast(wanted)


def _has_odd_dates(column: pa.Array) -> bool:
    """Whether a date at any depth has a year that no date of Python has."""
    kind = column.type
    if not len(column):
        return False
    if pa.types.is_date32(kind):
        found = pc.min_max(column.cast(pa.int32()))
        least, greatest = found["min"].as_py(), found["max"].as_py()
        return least is not None and not _FIRST_DAY <= least <= greatest <= _LAST_DAY
    if pa.types.is_struct(kind):
        return any(map(_has_odd_dates, column.flatten()))
    if pa.types.is_map(kind):
        maps = column.drop_null()  # a null one may have a range of entries
        first, end = (maps.offsets[place].as_py() for place in (0, -1))
        return any(_has_odd_dates(part.slice(first, end - first)) for part in (maps.keys, maps.items))
    return pa.types.is_list(kind) and _has_odd_dates(column.flatten())


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """The type with each timestamp replaced by a 64-bit integer, and each date and decimal by a text with all digits.

    Spark's Arrow timestamps are microseconds of UTC. One without a zone names no instant, and stays.
    """
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.int64()
    if pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_stored_type(kind.value_type)))
    if pa.types.is_map(kind):
        key, item = _stored_type(kind.key_type), _stored_type(kind.item_type)
        return pa.map_(kind.key_field.with_type(key), kind.item_field.with_type(item))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_stored_type(field.type)) for field in kind])
    return kind
