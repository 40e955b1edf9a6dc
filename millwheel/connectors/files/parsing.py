"""Converts lines of files to values and timestamps. Pure.

A line is one record: a JSON object, a CSV row under the file's header line, or a raw line. A quoted CSV field that
continues on the next line is not supported: none of its lines is a record.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, from_datetime
from millwheel.model.units import NEWEST_USUAL_US, OLDEST_USUAL_US
from millwheel.model.wording import counted
from millwheel.sdk.errors import MillwheelError, UsageError

__all__ = [
    "ColumnType",
    "FileFormat",
    "LineError",
    "LineParser",
    "OpenQuoteError",
    "TimeUnit",
    "TimestampField",
    "column_hint",
    "leaves_quote_open",
    "read_id",
    "split_lines",
]


class FileFormat(StrEnum):
    """The format of a line."""

    JSONL = "jsonl"
    CSV = "csv"
    LINES = "lines"
    """The line without its end is the value. For streams of bytes, or of UTF-8 text."""


class TimeUnit(StrEnum):
    """How a timestamp is written: a number of units since 1970, or ISO 8601 with an offset from UTC."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"
    ISO = "iso"


_OPEN_QUOTE: Final = "unexpected end of data"
"""The csv module's error for a line that ends inside quotes."""
_TEXT_FOR_NUMBER: Final = re.compile(r"Expected `(int|float)[^`]*`, got `str` - at `\$\.(\w+)`")
_FACTOR: Final = {TimeUnit.MICROSECONDS: 1, TimeUnit.MILLISECONDS: 1_000, TimeUnit.SECONDS: 1_000_000}


class ColumnType(StrEnum):
    """The type of a CSV column. An empty cell is None, except in a column of text."""

    TEXT = "text"
    INT = "int"
    FLOAT = "float"


class LineError(MillwheelError):
    """A line that is not a record."""


class OpenQuoteError(LineError):
    """A CSV line that ends inside quotes. The lines up to the closing quote are not records either."""


@dataclass(frozen=True, slots=True)
class TimestampField:
    """The field with a record's timestamp, by a dotted path."""

    path: str
    unit: TimeUnit

    def read(self, value: Any) -> int:
        """The timestamp of ``value``, in microseconds. LineError if there is none."""
        found = _field(value, self.path)
        try:
            timestamp = self._convert(found)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise self._no_time(found) from error
        if not MIN_TIMESTAMP < timestamp < MAX_TIMESTAMP:
            raise self._no_time(found)
        return timestamp

    def _no_time(self, found: Any) -> LineError:
        other = next((unit for unit in TimeUnit if unit is not self.unit and _is_time_in(unit, found)), None)
        hint = "" if other is None else f"; did you mean --unit {other.value}?"
        return LineError(f"the field {self.path!r} is no time in {self.unit.value}: {found!r:.80}{hint}")

    def _convert(self, found: Any) -> int:
        if self.unit is TimeUnit.ISO:
            return self._iso(found)
        if isinstance(found, bool):
            raise TypeError("a truth value")
        if isinstance(found, str):
            found = float(found) if "." in found or "e" in found.lower() else int(found)
        if self.unit is TimeUnit.NANOSECONDS:
            return int(found // 1_000)
        scaled: float = found * _FACTOR[self.unit]
        return round(scaled)

    def _iso(self, found: Any) -> int:
        moment = datetime.fromisoformat(found)
        if moment.tzinfo is None:
            raise LineError(
                f"the field {self.path!r} has no offset from UTC: {found!r:.80}; write it as 2026-11-22T20:00:00Z or "
                "2026-11-22T21:00:00+01:00"
            )
        return from_datetime(moment)


def _is_time_in(unit: TimeUnit, found: Any) -> bool:
    """Whether ``found``, read in ``unit``, is a time from 1980 to 2200. Nearly all real times are."""
    try:
        return OLDEST_USUAL_US <= TimestampField("", unit)._convert(found) <= NEWEST_USUAL_US
    except LineError:
        return True  # ISO 8601 without an offset
    except (TypeError, ValueError, ArithmeticError):
        return False


def read_id(value: Any, path: str) -> str:
    """A record's id: the text or integer at a dotted path. LineError if there is none."""
    found = _field(value, path)
    if isinstance(found, str) and found:
        return found
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
    raise LineError(f"the field {path!r} is no id: {found!r:.80}; an id is a text that is not empty, or a whole number")


def _field(value: Any, path: str) -> Any:
    """The value at a dotted path. LineError if there is none."""
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            raise LineError(f"no field {path!r}")
        value = value[name]
    return value


class LineParser:
    """Parses the lines of one file."""

    def __init__(
        self,
        form: FileFormat,
        timestamp: TimestampField | None,
        otherwise: int,
        header: bytes = b"",
        types: Mapping[str, ColumnType] | None = None,
        *,
        text: bool = False,
    ) -> None:
        """Create a parser.

        Args:
            form: The format of the lines.
            timestamp: The field with the timestamp. None gives every record the time ``otherwise``.
            otherwise: A time in microseconds.
            header: The first line of a CSV file.
            types: The CSV columns that are not text.
            text: Whether raw lines are text instead of bytes.

        Raises:
            UsageError: Raw lines have no fields to read a timestamp from.
            LineError: The header is invalid, or lacks a column of ``types``.
        """
        if timestamp is not None and form is FileFormat.LINES:
            raise UsageError("raw lines have no fields to read a timestamp from: name another format")
        self._timestamp = timestamp
        self._otherwise = otherwise
        self._columns = _cells(header) if form is FileFormat.CSV else []
        self._types = {name: kind for name, kind in (types or {}).items() if kind is not ColumnType.TEXT}
        if unknown := self._types.keys() - set(self._columns):
            raise LineError(
                f"no column {', '.join(map(repr, sorted(unknown)))} in the header: {', '.join(self._columns)}"
            )
        parsers: dict[FileFormat, Callable[[bytes], Any]] = {
            FileFormat.JSONL: self._json,
            FileFormat.CSV: self._csv,
            FileFormat.LINES: _text if text else bytes,
        }
        self._parse = parsers[form]

    def parse(self, line: bytes) -> tuple[Any, int]:
        """The value and the timestamp (microseconds) of a line without its end.

        LineError says what is wrong with it.
        """
        value = self._parse(line)
        return value, self._otherwise if self._timestamp is None else self._timestamp.read(value)

    def _json(self, line: bytes) -> Any:
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LineError(f"no JSON: {error}") from error
        if not isinstance(value, dict):
            raise LineError(f"no JSON object: {line[:80]!r}")
        return value

    def _csv(self, line: bytes) -> dict[str, Any]:
        cells = _cells(line)
        if len(cells) != len(self._columns):
            raise LineError(f"{counted(len(cells), 'cell')} under {counted(len(self._columns), 'column')}")
        value: dict[str, Any] = dict(zip(self._columns, cells, strict=True))
        for name, kind in self._types.items():
            try:
                value[name] = _converted(value[name], kind)
            except ValueError as error:
                raise LineError(f"the column {name!r} holds no {kind.value}: {value[name]!r:.80}") from error
        return value


def column_hint(message: str) -> str:
    """For a CSV record of the wrong type: the command line option that makes a column numeric.

    Empty if it does not apply.
    """
    found = _TEXT_FOR_NUMBER.search(message)
    return "" if found is None else f"; CSV cells are texts: give --column {found[2]}={found[1]}"


def leaves_quote_open(line: bytes) -> bool:
    """Whether a line that begins inside quotes also ends inside them."""
    try:
        next(csv.reader(['"' + line.decode("latin-1")], strict=True), [])
    except csv.Error as error:
        return str(error) == _OPEN_QUOTE
    return False


def split_lines(data: bytes, *, ended: bool) -> tuple[list[bytes], int]:
    """The lines at the beginning of ``data``, without their line feeds, and how many bytes they have.

    Only line feeds separate lines. A single carriage return is part of a line, and one before a line feed is kept here.

    Args:
        data: Bytes that begin with a line.
        ended: Whether nothing follows. Then the rest without a line feed is a line, too.
    """
    size = len(data) if ended else data.rfind(b"\n") + 1
    lines = data[:size].split(b"\n")
    if not size or data[size - 1] == ord("\n"):
        lines.pop()
    return lines, size


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise LineError(f"no text in UTF-8: {error}") from error


def _converted(cell: str, kind: ColumnType) -> int | float | None:
    if not cell:
        return None
    return int(cell) if kind is ColumnType.INT else float(cell)


def _cells(line: bytes) -> Sequence[str]:
    try:
        return next(csv.reader([line.decode()], strict=True), [])
    except (csv.Error, UnicodeDecodeError) as error:
        if str(error) == _OPEN_QUOTE:
            raise OpenQuoteError(
                "a quoted field goes on over the end of the line, but a line is a record here: no line up to the "
                "closing quote is one; write the field on one line, or the file as JSON lines"
            ) from error
        raise LineError(f"no CSV: {error}") from error
