"""The records in the body of a request (section 5.2). Pure.

A body is JSON lines, one JSON object, or a JSON array of objects. It is refused as a whole if one record is wrong.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

import msgspec

from millwheel.client.injector.likelihood import UNIT_NANOSECONDS, is_likely, unlikely
from millwheel.connectors.files.parsing import FileFormat, LineError, LineParser, TimestampField, read_id
from millwheel.errors import Problem
from millwheel.injectors.http.refusals import HttpRefusal
from millwheel.model.time import from_datetime
from millwheel.model.wording import counted

__all__ = [
    "MAX_RECORDS",
    "BodyForm",
    "BodyInflater",
    "BodyReader",
    "ReadBody",
    "form_of",
    "read_key",
    "read_time",
    "refused_records",
    "too_large",
]

MAX_RECORDS: Final = 10_000
"""The most records of a request: a fifth of what an injector sends without an ACK."""
_MAX_PROBLEMS: Final = 10
"""So many wrong records are named. The rest of the body is not read then."""
_MAX_KEY: Final = 255
_GZIP: Final = 31
"""zlib's window for the format of gzip."""
_MEANT: Final = "start the gateway with --any-timestamp"
_UNITS: Final = {unit: f"--unit {unit}" for unit in UNIT_NANOSECONDS}


class BodyForm(Enum):
    """How the records stand in a body."""

    LINES = "JSON lines"
    JSON = "JSON"
    """One object, or an array of objects."""


_FORMS: Final = {
    "application/x-ndjson": BodyForm.LINES,
    "application/ndjson": BodyForm.LINES,
    "application/jsonl": BodyForm.LINES,
    "application/json": BodyForm.JSON,
}


def form_of(content_type: str) -> BodyForm:
    """The form of a body, by its content type without parameters. HttpRefusal for any other type.

    A page of another site cannot make a browser send one of these types without a question before, which is refused.
    """
    form = _FORMS.get(content_type.lower())
    if form is None:
        raise HttpRefusal(
            415,
            "CONTENT_TYPE",
            f"a body of the type {content_type!r:.80} is not understood",
            "send JSON lines with Content-Type: application/x-ndjson, or an object or array with application/json",
        )
    return form


def read_key(header: str, name: str) -> str:
    """An idempotency key, as a header has it. With quotes around it, as a structured field, it is the same key.

    Args:
        header: The value of the header; empty without one.
        name: The name of the header.

    Raises:
        HttpRefusal: It is too long, or has other characters than ASCII.
    """
    key = header.strip()
    if len(key) > 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if len(key) > _MAX_KEY or not key.isascii() or (key and not key.isprintable()):
        raise HttpRefusal(
            400,
            "KEY_MALFORMED",
            f"the header {name} has no key of at most {_MAX_KEY} characters of ASCII",
            "send a key that is new for each request and stays when it is repeated, such as a UUID",
        )
    return key


def read_time(header: str, name: str, now: int, *, any_timestamp: bool) -> int:
    """The event time of all records of a request, in microseconds, as a header has it.

    Args:
        header: The value of the header: ISO 8601 with an offset.
        name: The name of the header.
        now: The time, in microseconds.
        any_timestamp: Whether times before 1980 or more than a year ahead are taken.

    Raises:
        HttpRefusal: It is no time, or an unlikely one.
    """
    try:
        moment = datetime.fromisoformat(header.strip())
        if moment.tzinfo is None:
            raise ValueError("it has no offset from UTC")
        timestamp = from_datetime(moment)
        if not any_timestamp and not is_likely(timestamp, now):
            raise ValueError(unlikely(timestamp, now, _UNITS, _MEANT, "iso"))
    except (ValueError, OverflowError) as error:
        raise HttpRefusal(
            400, "TIME_MALFORMED", f"the header {name} is no time: {error}", "write it as 2026-11-22T20:00:00Z"
        ) from error
    return timestamp


class BodyInflater:
    """Unpacks a body of gzip, never more than it may have."""

    def __init__(self, most: int) -> None:
        """``most``: the most bytes of the unpacked body."""
        self._left = most
        self._most = most
        self._member = zlib.decompressobj(_GZIP)

    def feed(self, data: bytes) -> bytes:
        """Unpack the next bytes of the body. HttpRefusal: they are no gzip, or the body is too large."""
        unpacked = bytearray()
        while data:
            if self._member.eof:  # a body may be several files of gzip, one after the other
                self._member = zlib.decompressobj(_GZIP)
            try:
                part = self._member.decompress(data, self._left + 1)
            except zlib.error as error:
                raise _no_gzip(str(error)) from error
            self._left -= len(part)
            if self._left < 0:
                raise too_large(self._most)
            unpacked += part
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
        return bytes(unpacked)

    def end(self) -> None:
        """The body has ended. HttpRefusal: the file of gzip has not."""
        if not self._member.eof:
            raise _no_gzip("it ends too early")


def _no_gzip(why: str) -> HttpRefusal:
    return HttpRefusal(
        400, "BODY_MALFORMED", f"the body is no gzip: {why}", "pack it again, or leave Content-Encoding out"
    )


def too_large(most: int) -> HttpRefusal:
    """The refusal of a body of more than ``most`` bytes."""
    return HttpRefusal(
        413,
        "BODY_TOO_LARGE",
        f"the body has more than {most:,} bytes",
        "send fewer records in a request, or start the gateway with a larger --max-body",
    )


@dataclass(frozen=True, slots=True)
class ReadBody:
    """The records of a request, as columns. ``places`` says where each of them stands, as ``line 3``."""

    values: list[Any]
    timestamps: list[int]
    ids: list[str] | None
    places: list[str]


@dataclass(frozen=True, slots=True)
class BodyReader:
    """How records are read from bodies.

    Attributes:
        timestamp: The field with a record's event time. None: all records of a request have the same.
        id_field: The dotted path of the field with a record's id. Empty: the key of the request identifies its records.
        any_timestamp: Whether times before 1980 or more than a year ahead are taken.
    """

    timestamp: TimestampField | None = None
    id_field: str = ""
    any_timestamp: bool = False

    def read(self, body: bytes, form: BodyForm, key: str, at: int, now: int) -> ReadBody:
        """Read a body.

        Invariant (G1): the ids depend on the request alone, so that each gateway finds the same ones. Ids of records
        and ids by keys never meet: they begin differently.

        Args:
            body: The body, unpacked.
            form: How records stand in it.
            key: The idempotency key of the request. Empty: its records have no ids, unless they have a field for them.
            at: The event time of records without a field for it, in microseconds.
            now: The time, in microseconds.

        Raises:
            HttpRefusal: It names each wrong record, up to ten.
        """
        parser = LineParser(FileFormat.JSONL, self.timestamp, at)
        read = ReadBody([], [], [] if key or self.id_field else None, [])
        problems: list[Problem] = []
        found = _lines(body) if form is BodyForm.LINES else _elements(body)
        if len(found) > MAX_RECORDS:
            raise _too_many(len(found), "records")
        for place, text in found:
            try:
                value, timestamp = parser.parse(text)
                self._check_time(timestamp, now)
                if read.ids is not None:
                    own = f"id:{read_id(value, self.id_field)}" if self.id_field else f"key:{len(read.values)}:{key}"
                    own.encode()
                    read.ids.append(own)
            except (LineError, UnicodeEncodeError) as error:
                problems.append(Problem(place, str(error)))
                if len(problems) == _MAX_PROBLEMS:
                    break
                continue
            read.values.append(value)
            read.timestamps.append(timestamp)
            read.places.append(place)
        if problems:
            raise refused_records(problems)
        return read

    def _check_time(self, timestamp: int, now: int) -> None:
        if self.timestamp is not None and not self.any_timestamp and not is_likely(timestamp, now):
            why = unlikely(timestamp, now, _UNITS, _MEANT, self.timestamp.unit.value)
            raise LineError(f"the field {self.timestamp.path!r}: {why}")


def refused_records(problems: Sequence[Problem]) -> HttpRefusal:
    """The refusal of a body with these wrong records."""
    more = "" if len(problems) == 1 else f", and {counted(len(problems) - 1, 'more record')}"
    return HttpRefusal(
        400,
        "RECORD_REFUSED",
        f"{problems[0]}{more}",
        "no record of the request is in the stream: correct it, and send all of it again",
        problems=problems,
    )


def _too_many(count: int, what: str) -> HttpRefusal:
    return HttpRefusal(
        413,
        "BODY_TOO_LARGE",
        f"the body has {count:,} {what}",
        f"send at most {MAX_RECORDS:,} records in a request",
    )


def _lines(body: bytes) -> list[tuple[str, bytes]]:
    """The lines that are not empty. Only line feeds separate lines, as in files."""
    if (count := body.count(b"\n")) > 2 * MAX_RECORDS:
        raise _too_many(count, "lines")
    lines = enumerate(body.split(b"\n"), 1)
    return [(f"line {number}", line) for number, line in lines if line.strip()]


def _elements(body: bytes) -> list[tuple[str, bytes]]:
    """The object of a body, or the elements of its array."""
    try:
        if body.lstrip()[:1] != b"[":
            return [("the object", bytes(msgspec.json.decode(body, type=msgspec.Raw)))]
        found = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpRefusal(
            400,
            "BODY_MALFORMED",
            f"the body is no JSON: {error}",
            "send an object, or an array of objects; JSON lines need Content-Type: application/x-ndjson",
        ) from error
    return [(f"element {number}", bytes(one)) for number, one in enumerate(found, 1)]
