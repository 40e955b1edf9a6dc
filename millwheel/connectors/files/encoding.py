"""The contents of the files of a sink, and the columns of a type.

Equal records make equal contents, with one version of the libraries.
"""

from __future__ import annotations

import gzip
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import date, datetime
from enum import Enum
from typing import Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import inspect

from millwheel.connectors.files.errors import load_parquet
from millwheel.model.time import Timestamp
from millwheel.sdk.errors import UsageError
from millwheel.sdk.typeinfo import Field, describe_type, field_of, members, normalise, supertype, type_name

__all__ = ["ENDINGS", "Encoder", "RowColumns", "encoder_of"]

ENDINGS: Final = ("jsonl", "jsonl.gz", "parquet")
_KEPT: Final = (bytes, datetime, date)
"""What a row has as it is."""


class Encoder(ABC):
    """Makes the content of a file of records."""

    @abstractmethod
    def encode(self, values: Sequence[Any]) -> bytes:
        """The content of a file with these records."""


class _JsonLines(Encoder):
    def __init__(self, compressed: bool) -> None:
        self._compressed = compressed
        self._encoder = msgspec.json.Encoder()

    def encode(self, values: Sequence[Any]) -> bytes:
        content = self._encoder.encode_lines(values)
        return gzip.compress(content, mtime=0) if self._compressed else content


class RowColumns:
    """The columns of a type. pyarrow is there.

    Attributes:
        schema: The columns, as a schema of pyarrow. Each of them may be empty.
    """

    def __init__(self, record_type: Any) -> None:
        """UsageError: a field of the type has no column."""
        import pyarrow

        self._table = pyarrow.Table
        self.schema = pyarrow.schema(list(_arrow_fields(record_type, type_name(record_type)).items()))

    def table(self, values: Sequence[Any]) -> Any:
        """A table of pyarrow with these records as rows."""
        rows = [msgspec.to_builtins(value, builtin_types=_KEPT) for value in values]
        return self._table.from_pylist(rows, self.schema)


class _Parquet(Encoder):
    def __init__(self, record_type: Any) -> None:
        self._library = load_parquet()
        self._columns = RowColumns(record_type)

    def encode(self, values: Sequence[Any]) -> bytes:
        content = io.BytesIO()
        self._library.write_table(self._columns.table(values), content)
        return content.getvalue()


def encoder_of(ending: str, record_type: Any) -> Encoder:
    """What makes the contents of files that end so.

    Raises:
        UsageError: The ending is not known, or the type has no place in such a file.
    """
    if ending not in ENDINGS:
        raise UsageError(f"{ending!r} is no format of a sink of files: {', '.join(ENDINGS)} are known")
    if ending != "parquet":
        return _JsonLines(compressed=ending.endswith(".gz"))
    return _Parquet(record_type)


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
            return pa.timestamp("us", "UTC")
        part = supertype(parts[0])
        plain = {
            int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary(), bool: pa.bool_(),
            datetime: pa.timestamp("us", "UTC"), date: pa.date32(),
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
