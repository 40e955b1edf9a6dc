"""Records of a delivery as columns of all their fields, where no value of a record needs to be made (4.2; G1).

*Invariant (G1): the encoding of each row is that of the record's value.* So the rules are those of a field that is read
from a column (``ColumnFields``), for each field of the type.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from millwheel.rpc.column_keys import integers_of
from millwheel.rpc.columns import RecordColumns
from millwheel.rpc.nullable_column import NullableColumn
from millwheel.sdk.column_fields import ColumnFields, column_fields, encoded_fields
from millwheel.sdk.column_reading import ColumnReading, ColumnRows
from millwheel.sdk.columns import NotFoldedError
from millwheel.sdk.exact_types import behind, unless_none
from millwheel.sdk.typeinfo import cached_by_type

__all__ = ["PassedColumns", "WholeFields", "passed_columns", "records_at", "whole_fields"]


class WholeFields(NamedTuple):
    """All fields of a type. ``names``: in encoded values. ``wanted``: as Python has them, each with its type.

    ``columns``: where they are in columns.
    """

    names: list[str]
    wanted: list[tuple[str, type]]
    columns: ColumnFields

    def are_in(self, records: RecordColumns) -> bool:
        """Whether the columns are exactly these fields, in their order, and each row decodes as the type."""
        if records.batch.schema.names != self.names:
            return False
        return self.columns.columns_of(self.wanted, records.kinds(), records.with_nulls()) is not None


class PassedColumns(NamedTuple):
    """What filters and selections leave of some records: the indexes of those that pass, and the values' columns."""

    indexes: Sequence[int]
    records: RecordColumns


@cached_by_type
def whole_fields(record_type: Any) -> WholeFields | str:
    """The fields of a type whose encodings have all of them, in their order. A text: why it is no such type."""
    fields = encoded_fields(record_type)
    if isinstance(fields, str):
        return fields
    columns = cast("ColumnFields", column_fields(record_type))  # without them, the text says so
    wanted: list[Any] = [(one.name, behind(unless_none(one.type) or one.type)) for one in fields]
    return WholeFields([one.encode_name for one in fields], wanted, columns)


def records_at(records: RecordColumns, names: Sequence[str], indexes: Sequence[int]) -> RecordColumns:
    """Some columns of the records with these indexes, which rise."""
    chosen = RecordColumns(records.batch.select(list(names)), records.timestamps)
    if len(indexes) == len(records):
        return chosen
    first, end = indexes[0], indexes[-1] + 1
    if end - first == len(indexes):
        return RecordColumns(chosen.batch.slice(first, end - first), records.timestamps[first:end])
    return chosen.taken(integers_of(array("q", indexes)))


def passed_columns(
    reading: ColumnReading, fields: WholeFields, records: RecordColumns, indexes: Sequence[int]
) -> PassedColumns | None:
    """Run the steps of a reading on some records. None: their values must be read.

    Args:
        reading: The steps between the stream and the hook.
        fields: Those of the values that the hook gets.
        records: The records of a delivery.
        indexes: Those that are read. They rise.
    """
    names = reading.columns_of(fields.wanted, records.kinds(), records.with_nulls())
    if names is None:
        return None
    import numpy as np

    rows = np.arange(indexes.start, indexes.stop) if isinstance(indexes, range) else np.array(indexes)
    passing = ColumnRows(len(rows), lambda field, places: records.column(names[field], rows[places]))
    try:
        passed = reading.passed(passing)
    except NotFoldedError:
        return None
    found: list[int] = rows[passed.places].tolist()
    if not found:
        return PassedColumns(found, RecordColumns(records.batch.slice(0, 0), array("q")))
    return _with(passed, fields, names, records, found)


def _with(
    passed: ColumnRows, fields: WholeFields, names: dict[str, str], records: RecordColumns, found: list[int]
) -> PassedColumns | None:
    """The columns of the values that are made of the records ``found``. None: one of these does not decode, perhaps."""
    import pyarrow as pa

    sources = [passed.source(name) for name, _ in fields.wanted]
    if any(isinstance(one, NullableColumn) for one in sources):
        return None
    taken = list(dict.fromkeys(names[one] for one in sources if isinstance(one, str)))
    own = records_at(records, taken, found)
    columns = [own.batch.column(names[one]) if isinstance(one, str) else pa.array(one) for one in sources]
    made = RecordColumns(pa.record_batch(columns, names=fields.names), own.timestamps)
    return PassedColumns(found, made) if fields.are_in(made) else None
