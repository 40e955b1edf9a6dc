"""Records as tables of pyarrow: the columns of a type, and what goes into them (section 4.3; G1).

*Invariant (G1): a table says of each record what its value says*, also where no value is made. So there is one rule for
the types of columns, and a property test compares both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import inspect

from millwheel.model.time import Timestamp
from millwheel.sdk.errors import UsageError
from millwheel.sdk.exact_types import is_plain_struct
from millwheel.sdk.typeinfo import (
    Field,
    cached_by_type,
    describe_type,
    field_of,
    members,
    normalise,
    supertype,
    type_name,
)

__all__ = ["RowColumns", "row_columns"]

_KEPT: Final = (bytes, datetime, date)
"""What a row has as it is."""


class RowColumns:
    """The columns of a type.

    Attributes:
        schema: The columns, as a schema of pyarrow. Each of them may be empty.
    """

    def __init__(self, record_type: Any) -> None:
        """UsageError: a field of the type has no column, or pyarrow is missing."""
        try:
            import pyarrow
        except ImportError as error:
            raise UsageError(
                f"tables need pyarrow: install openmillwheel[arrow], here and on the workers ({error})"
            ) from error
        self._table = pyarrow.Table
        self.schema = pyarrow.schema(list(_arrow_fields(record_type, type_name(record_type)).items()))
        struct = get_origin(record_type) or record_type
        self._struct = struct if is_plain_struct(struct) and not _leaves_out(struct) else None
        """Values of this class have all fields in their encoding. None: the type has other values."""
        self._cells = [] if self._struct is None else [attrgetter(name) for name in struct.__struct_fields__]

    def table(self, values: Sequence[Any]) -> Any:
        """A table of pyarrow with these records as rows."""
        struct = self._struct
        if struct is not None and all(value.__class__ is struct for value in values):
            # Each field of all records is converted at once. A dict for each record takes three times as long.
            cells = [msgspec.to_builtins(list(map(cell, values)), builtin_types=_KEPT) for cell in self._cells]
            return self._table.from_arrays(cells, schema=self.schema)
        rows = [msgspec.to_builtins(value, builtin_types=_KEPT) for value in values]
        return self._table.from_pylist(rows, self.schema)

    def of_columns(self, given: Any) -> Any:
        """A table of records that are columns already. None: one is of another type, so their values are needed.

        Args:
            given: A record batch of pyarrow, which has a column for each field of the records. So a column of the type
                that it has not is empty.
        """
        import pyarrow as pa

        columns = []
        for field in self.schema:
            if (at := given.schema.get_field_index(field.name)) < 0:
                columns.append(pa.nulls(len(given), field.type))
            elif (column := given.column(at)).type == field.type:
                columns.append(column)
            elif field.type == _times() and column.type == pa.int64():
                columns.append(column.view(field.type))
            else:
                return None
        return self._table.from_arrays(columns, schema=self.schema)


@cached_by_type
def row_columns(record_type: Any) -> RowColumns:
    """The columns of a type. UsageError: see there."""
    return RowColumns(record_type)


@lru_cache(1)
def _times() -> Any:
    """The type of columns of times."""
    import pyarrow as pa

    return pa.timestamp("us", "UTC")


def _leaves_out(struct: type[msgspec.Struct]) -> bool:
    """Whether an encoding may be without some fields, or without their names."""
    config = struct.__struct_config__
    return bool(config.omit_defaults or config.array_like)


def _arrow_fields(record_type: Any, where: str) -> dict[str, Any]:
    """The columns of a type with fields, by their stored names."""
    described = describe_type(record_type)
    if not isinstance(described, (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)):
        raise UsageError(f"a row has fields, and {where} has none: give a type with the fields")
    columns = {}
    for one in described.fields:
        field = field_of(record_type, one.name)
        stated = field.type if isinstance(field, Field) else Any
        columns[one.encode_name] = _arrow_type(stated, f"{where}.{one.name}")
    return columns


def _arrow_type(stated: Any, where: str) -> Any:
    """The type of a column. Each column may be empty."""
    import pyarrow as pa

    parts = [part for part in members(stated) if supertype(part) is not type(None)]
    if len(parts) == 1:
        if normalise(parts[0]) is Timestamp:
            return _times()
        part = supertype(parts[0])
        plain = {
            int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary(), bool: pa.bool_(),
            datetime: _times(), date: pa.date32(),
        }  # fmt: skip
        if part in plain:
            return plain[part]
        origin, arguments = get_origin(part), get_args(part)
        if origin in (list, set, frozenset) or (origin is tuple and arguments[1:] == (...,)):
            return pa.list_(_arrow_type(arguments[0], f"{where}[]"))
        if origin is dict and supertype(arguments[0]) is str:
            return pa.map_(pa.string(), _arrow_type(arguments[1], f"{where}[]"))
        if origin is Literal or (isinstance(part, type) and issubclass(part, Enum)):
            return _type_of_values(arguments if origin is Literal else [one.value for one in part], stated, where)
        if _is_text(describe_type(part)):
            return pa.string()
        if isinstance(describe_type(part), (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)):
            return pa.struct(list(_arrow_fields(part, where).items()))
    raise _without_column(stated, where)


def _is_text(described: inspect.Type) -> bool:
    """Whether msgspec writes such a value as a text."""
    return isinstance(described, (inspect.DecimalType, inspect.UUIDType, inspect.TimeType, inspect.TimeDeltaType))


def _type_of_values(values: Sequence[Any], stated: Any, where: str) -> Any:
    import pyarrow as pa

    for kind, column in ((str, pa.string()), (int, pa.int64())):
        if all(isinstance(one, kind) and not isinstance(one, bool) for one in values):
            return column
    raise _without_column(stated, where)


def _without_column(stated: Any, where: str) -> UsageError:
    return UsageError(
        f"{where} is {type_name(stated)}, which is no column: choose another type, such as str, or write files of jsonl"
    )
