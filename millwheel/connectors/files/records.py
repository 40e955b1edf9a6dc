"""How a line or a row becomes a record of a type. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import inspect

from millwheel.connectors.files.parsing import FileFormat, LineError, LineParser
from millwheel.sdk.errors import UsageError
from millwheel.sdk.known_types import known
from millwheel.sdk.typeinfo import describe_type, type_name

__all__ = ["PARQUET", "LineReader", "PlaceFields", "RecordType", "format_of"]

PARQUET: Final = "parquet"
_FORMATS: Final = {"jsonl": "jsonl", "ndjson": "jsonl", "csv": "csv", "txt": "lines", "log": "lines", PARQUET: PARQUET}
"""The formats, by the endings of names."""
_CELL_BYTES: Final = 9
_MAX_OVERHEAD: Final = 8 << 20
"""The most that names of fields add to one read."""
_FIELDS: Final = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)


class _Empty(StrEnum):
    """What an empty cell of a CSV column is."""

    TEXT = "text"
    NONE = "none"
    MISSING = "missing"


def format_of(name: str, stated: str | None) -> str:
    """The format of files: the stated one, or that of the name's ending.

    Raises:
        UsageError: It is not known, or the name does not say it.

    >>> format_of("sales-*.csv.gz", None)
    'csv'
    """
    known = sorted(set(_FORMATS.values()))
    if stated is not None:
        if stated not in known:
            raise UsageError(f"{stated!r} is no format of files: {', '.join(known)} are known")
        return stated
    ending = name.lower().removesuffix(".gz").removesuffix(".zst").rpartition(".")[2]
    if ending not in _FORMATS:
        raise UsageError(f"the name {name!r} does not say the format of the files: give format=, one of {known}")
    return _FORMATS[ending]


@dataclass(frozen=True, slots=True)
class PlaceFields:
    """The fields of a record that the file does not have: they say where it comes from. Empty: there is no such."""

    file: str = ""
    line: str = ""

    def add_to(self, row: dict[str, Any], name: str, line: int) -> None:
        """Set them."""
        if self.file:
            row[self.file] = name
        if self.line:
            row[self.line] = line


class RecordType:
    """A type of records, and its fields as they are stored."""

    def __init__(self, record_type: Any, form: str, columns: PlaceFields) -> None:
        """Check that records of a format can have the type.

        Raises:
            UsageError: They cannot.
        """
        self.type = record_type
        described = describe_type(record_type)
        self.fields: Mapping[str, inspect.Field] | None = None
        """By the stored name. None: the type has no fields of its own."""
        if isinstance(described, _FIELDS):
            self.fields = {one.encode_name: one for one in described.fields}
        self.overhead = sum(len(name) + _CELL_BYTES for name in self.fields or ())
        """About how many bytes a record has beside its values when it is stored: the names of its fields."""
        if form == FileFormat.LINES and (record_type not in (str, bytes) or columns != PlaceFields()):
            raise UsageError(
                f"lines are str or bytes, without other fields, and not {type_name(record_type)}: choose another format"
            )
        if form in (FileFormat.CSV, PARQUET) and not isinstance(described, (*_FIELDS, inspect.DictType)):
            raise UsageError(
                f"a row of {form} has fields, and {type_name(record_type)} has none: give a type with the fields"
            )
        for name in (columns.file, columns.line):
            if name and self.fields is not None and name not in self.fields:
                raise UsageError(f"{type_name(record_type)} has no field {name!r}: it has {', '.join(self.fields)}")

    def convert(self, row: dict[str, Any], *, texts: bool) -> Any:
        """A record of this type. ``texts``: numbers and truth values are texts.

        Raises:
            LineError: The row is none.
        """
        try:
            return msgspec.convert(row, self.type, strict=not texts)
        except (msgspec.ValidationError, OverflowError, ValueError) as error:
            raise LineError(str(error)) from error

    def is_number(self, name: str) -> bool:
        """Whether a field is a whole number, such as a Timestamp."""
        return self.fields is not None and name in self.fields and _has(self.fields[name].type, inspect.IntType)

    @property
    def most_records(self) -> int:
        """The most records of a read, so that the names of their fields do not make it too large."""
        return max(_MAX_OVERHEAD // max(self.overhead, 1), 1)

    def required(self) -> set[str]:
        """The fields without a default."""
        return {name for name, field in (self.fields or {}).items() if field.required}


class LineReader:
    """Reads the lines of one file as records."""

    def __init__(
        self, record_type: RecordType, form: str, columns: PlaceFields, name: str, header: bytes = b""
    ) -> None:
        """
        Raises:
            LineError: The header of a CSV file is none.
        """
        self._type = record_type
        self._columns = columns
        self._name = name
        self.most_records = record_type.most_records
        self._parser = LineParser(FileFormat(form), None, 0, header, text=record_type.type is str)
        self._json: msgspec.json.Decoder[Any] | None = None
        if form == FileFormat.JSONL and columns == PlaceFields():
            self._json = msgspec.json.Decoder(known(record_type.type))
        self._csv = form == FileFormat.CSV
        self._lines = form == FileFormat.LINES
        self._empty = {name: _empty_cell(one.type) for name, one in (record_type.fields or {}).items()}

    def read(self, line: bytes, number: int) -> Any:
        """The record of a line without its end. ``number``: from 1 on.

        Raises:
            LineError: It is none.
        """
        if self._json is not None:
            try:
                return self._json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise LineError(f"no record: {error}") from error
        row = self._parser.parse(line)[0]
        if self._lines:
            return row
        if self._csv:
            row = self._with_empty_cells(row)
        self._columns.add_to(row, self._name, number)
        return self._type.convert(row, texts=self._csv)

    def _with_empty_cells(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row, with what its empty cells mean for the fields."""
        if "" not in row.values():
            return row
        means = self._empty
        return {
            name: None if not cell and means.get(name) is _Empty.NONE else cell
            for name, cell in row.items()
            if cell or means.get(name) is not _Empty.MISSING
        }


def _empty_cell(field: inspect.Type) -> _Empty:
    """An empty cell is a text for a field of text, else None if the field may be, else the field's default."""
    if _has(field, inspect.StrType) or _has(field, inspect.AnyType):
        return _Empty.TEXT
    return _Empty.NONE if _has(field, inspect.NoneType) else _Empty.MISSING


def _has(field: inspect.Type, kind: type[inspect.Type]) -> bool:
    parts = field.types if isinstance(field, inspect.UnionType) else (field,)
    return any(isinstance(part, kind) for part in parts)
