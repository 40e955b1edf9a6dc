"""An entry of a stream, and how its fields become a value and back. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from millwheel.model.time import Timestamp
from millwheel.sdk.errors import UsageError
from millwheel.sdk.known_types import known

__all__ = ["RedisEntry", "Word", "as_word", "event_time", "fields_of", "reads_as", "shown"]

T = TypeVar("T")
Word = bytes | str | int | float
"""What a command of Redis consists of."""

_NESTED: Final = (
    inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType, inspect.TupleType,
    inspect.DictType, inspect.TypedDictType, inspect.NamedTupleType, inspect.DataclassType, inspect.StructType,
)  # fmt: skip
_WITH_FIELDS: Final = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_MAX_SHOWN: Final = 256 << 10
"""The most bytes of an entry that cannot be read. A record of a stream has up to 1 MiB."""


class RedisEntry(msgspec.Struct, frozen=True):
    """An entry of a stream as it is. A field that it has twice has its last value."""

    stream: str
    id: str
    fields: dict[str, bytes]


def event_time(entry: str) -> Timestamp:
    """The time in the id of an entry: milliseconds of the server's clock, in microseconds.

    >>> event_time("1767268800000-3")
    1767268800000000
    """
    return Timestamp(int(entry.partition("-")[0]) * 1_000)


def reads_as(kind: Any, field: str | None, decode: Callable[[RedisEntry], Any] | None) -> Callable[[RedisEntry], Any]:
    """The function that makes a value of an entry. What it raises says that the entry cannot be read.

    Args:
        kind: The type of the value.
        field: The field that has the value as JSON. None: the entry has the fields of the value.
        decode: A function that does it instead.

    Raises:
        UsageError: No entry can become such a value.
    """
    if decode is not None:
        return decode
    if kind is RedisEntry:
        return lambda entry: entry
    try:
        if field is not None:
            parse = msgspec.json.Decoder(known(kind)).decode
            return lambda entry: parse(_field(entry, field))
        described = inspect.type_info(known(kind))
    except TypeError as error:
        raise UsageError(f"no entry of Redis can be read as {kind!r}: {error}. Give decode=FUNCTION") from error
    if not isinstance(described, _WITH_FIELDS):
        raise UsageError(
            f"an entry of Redis has fields, and {kind!r} has none. Name the field with its JSON, by json=, or give "
            "decode=FUNCTION"
        )
    nested = frozenset(one.encode_name for one in described.fields if _is_nested(one.type))
    return lambda entry: _convert(entry, kind, nested)


def _is_nested(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.UnionType):
        return any(map(_is_nested, kind.types))
    return isinstance(kind, _NESTED)


def _convert(entry: RedisEntry, kind: Any, nested: frozenset[str]) -> Any:
    texts = {
        name: msgspec.json.decode(value) if name in nested else value.decode() for name, value in entry.fields.items()
    }
    return msgspec.convert(texts, kind, strict=False)


def _field(entry: RedisEntry, name: str) -> bytes:
    if name not in entry.fields:
        raise ValueError(f"it has no field {name!r}")
    return entry.fields[name]


def fields_of(value: Any) -> list[Word]:
    """The fields of a value as an entry has them: name, text, name, text. What :func:`reads_as` reads again.

    A field that is None is left out. What is no text and no number is JSON.

    Raises:
        TypeError: The value has no fields.
    """
    fields = msgspec.to_builtins(value, str_keys=True)
    if not isinstance(fields, dict):
        raise TypeError(f"{value!r:.100} has no fields: give the sink json=FIELD, which then has its JSON")
    words: list[Word] = []
    for name, field in fields.items():
        if field is not None:
            words += [name, field if isinstance(field, str) else msgspec.json.encode(field)]
    if not words:
        raise TypeError(f"{value!r:.100} has no field with a value, and an entry of Redis has at least one")
    return words


def as_word(word: Any) -> bytes:
    """A word of a command as Redis gets it.

    Raises:
        TypeError: It is no text, bytes or number.
    """
    if isinstance(word, bytes):
        return word
    if isinstance(word, str):
        return word.encode()
    if isinstance(word, int | float) and not isinstance(word, bool):
        return repr(word).encode() if type(word) in (int, float) else str(word).encode()
    raise TypeError(f"a word of a command is text, bytes or a number, not {word!r:.100}")


def shown(fields: Mapping[str, bytes]) -> bytes:
    """The fields of an entry that cannot be read, as JSON."""
    texts = {name: value.decode(errors="backslashreplace") for name, value in fields.items()}
    return msgspec.json.encode(texts)[:_MAX_SHOWN]
