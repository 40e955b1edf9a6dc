"""Divides a table by the folders of its rows, without a value for each row. Pure.

*Invariant (G1): a row is in the folder of its record.* So both take the name of a folder from one function.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from millwheel.connectors.files.layout import TIMES, Layout, time_folder, value_folder
from millwheel.model.time import Timestamp
from millwheel.rpc.columns import plain_types
from millwheel.sdk.exact_types import behind, unless_none
from millwheel.sdk.typeinfo import Field, field_of

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column

__all__ = ["table_parts"]

_LENGTHS: Final = {"day": 86_400_000_000, "hour": 3_600_000_000}
"""How long the times of a folder are, in microseconds."""


def table_parts(layout: Layout, table: Any, times: array[int], record_type: Any) -> dict[str, Any] | None:
    """The rows in each folder, as tables. None: only the values of the records say which folder one is in.

    Args:
        layout: Where rows are.
        table: A table of pyarrow, with at least one row.
        times: The time of each row.
        record_type: The type of the records. Its field by which folders are named is a column of another name, maybe.
    """
    if not layout.has_folders:
        return {"": table}
    import numpy as np

    names, numbers = [""], np.zeros(len(times), np.int64)
    if layout.by_time is not None:
        names, numbers = _by_time(layout.by_time, times)
    if layout.by is not None:
        field = field_of(record_type, layout.by)
        at = table.schema.get_field_index(field.wire_name) if isinstance(field, Field) else -1
        kind = None if at < 0 else plain_types().get(table.schema.field(at).type)
        if kind is None or not isinstance(field, Field) or behind(unless_none(field.type) or field.type) is not kind:
            return None  # the record's value is another one than that of the column, such as 5 for 5.0
        folders, values = _by_value(layout.by, table.column(at))
        names = [before + folder for before in names for folder in folders]
        numbers = numbers * len(folders) + values
    return {folder: table.take(rows) for folder, rows in _rows_of(names, numbers).items()}


def _by_time(by_time: str, times: array[int]) -> tuple[list[str], Column]:
    """The folders of times, and the number of the folder of each row."""
    import numpy as np

    begun, numbers = np.unique(np.frombuffer(times, np.int64) // _LENGTHS[by_time], return_inverse=True)
    # A time in each folder, and not its beginning: that may be before the year 1.
    some = np.zeros(len(begun), np.int64)
    some[numbers] = np.frombuffer(times, np.int64)
    return [time_folder(TIMES[by_time], Timestamp(at)) for at in some.tolist()], numbers


def _by_value(field: str, column: Any) -> tuple[list[str], Column]:
    """The folders of the values of a column, and the number of the folder of each row."""
    found = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return [value_folder(field, value) for value in found.dictionary.to_pylist()], found.indices.to_numpy()


def _rows_of(names: Sequence[str], numbers: Column) -> dict[str, Column]:
    """The rows in each folder, in their order. Values may share a folder, such as an empty text and none at all."""
    import numpy as np

    there, places = np.unique(numbers, return_inverse=True)
    folders = {names[number]: 0 for number in there.tolist()}
    folders = {name: at for at, name in enumerate(folders)}
    of_rows = np.array([folders[names[number]] for number in there.tolist()])[places]
    ordered = np.argsort(of_rows, kind="stable")
    ends = np.cumsum(np.bincount(of_rows, minlength=len(folders)))
    return dict(zip(folders, np.split(ordered, ends[:-1]), strict=True))
