"""How a part of a message is read and written: a scalar, a message, a list or a map. Pure.

What reads puts the value into a dict, from which ``msgspec.convert`` makes the program's one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from math import isfinite
from operator import attrgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from msgspec import inspect

__all__ = [
    "DATETIME", "DURATION", "SCALARS", "TIMESTAMP", "WRAPPERS", "MessagePart", "ReadPart", "Step", "WritePart",
    "read_list", "read_map", "read_optional", "read_plain", "value_of", "wrapped",
    "write_list", "write_map", "write_one",
]  # fmt: skip

Step = Callable[[Any], Any]
ReadPart = Callable[[Message, dict[str, Any]], None]
WritePart = Callable[[Any, Message], None]
"""Takes the program's value, which is not None."""


class MessagePart(NamedTuple):
    """What a field has once: a scalar or a message."""

    inward: Step | None
    """From what the message has to what ``msgspec.convert`` takes. None: it is the same."""
    outward: Step | None
    """From the program's value to the scalar. None: it is the same."""
    fill: Callable[[Any, Any], None] | None = None
    """Puts the program's value into a message. None: it is a scalar."""


def read_plain(name: str, item: MessagePart) -> ReadPart:
    inward = item.inward

    def read(message: Message, plain: dict[str, Any]) -> None:
        value = getattr(message, name)
        plain[name] = value if inward is None else inward(value)

    return read


def read_optional(name: str, item: MessagePart, may_be_none: bool) -> ReadPart:
    """A field that is missing is None, or else it is left to the type's default."""
    read_set = read_plain(name, item)

    def read(message: Message, plain: dict[str, Any]) -> None:
        if message.HasField(name):
            read_set(message, plain)
        elif may_be_none:
            plain[name] = None

    return read


def read_list(name: str, item: MessagePart) -> ReadPart:
    inward = item.inward

    def read(message: Message, plain: dict[str, Any]) -> None:
        values = getattr(message, name)
        plain[name] = list(values) if inward is None else [inward(one) for one in values]

    return read


def read_map(name: str, item: MessagePart) -> ReadPart:
    inward = item.inward

    def read(message: Message, plain: dict[str, Any]) -> None:
        values = getattr(message, name).items()
        plain[name] = dict(values) if inward is None else {key: inward(value) for key, value in values}

    return read


def write_one(name: str, item: MessagePart) -> WritePart:
    if (fill := item.fill) is not None:

        def put(value: Any, message: Message) -> None:
            part = getattr(message, name)
            part.SetInParent()  # it may have no field that is set
            fill(value, part)

        return put
    outward = item.outward
    return lambda value, message: setattr(message, name, value if outward is None else outward(value))


def write_list(name: str, item: MessagePart) -> WritePart:
    if (fill := item.fill) is not None:

        def put(values: Any, message: Message) -> None:
            parts = getattr(message, name)
            for one in values:
                fill(one, parts.add())

        return put
    outward = item.outward
    return lambda values, message: getattr(message, name).extend(
        values if outward is None else [outward(one) for one in values]
    )


def write_map(name: str, keys: MessagePart, item: MessagePart) -> WritePart:
    def put(values: Any, message: Message) -> None:
        parts = getattr(message, name)
        for key, value in values.items():
            key = key if keys.outward is None else keys.outward(key)
            if item.fill is not None:
                item.fill(value, parts[key])
            else:
                parts[key] = value if item.outward is None else item.outward(value)

    return put


def wrapped(item: MessagePart) -> MessagePart:
    """The item of a message that has one scalar, so that it may be missing."""
    inward, outward = item.inward, item.outward

    def fill(value: Any, message: Any) -> None:
        message.value = value if outward is None else outward(value)

    return MessagePart(lambda message: message.value if inward is None else inward(message.value), None, fill)


def value_of(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _single(value: float) -> float:
    if isfinite(value) and abs(value) > _LARGEST_SINGLE:  # it would become infinite
        raise ValueError(f"{value} is too large for a float of Protobuf: its field may be a double")
    return value


def _moment(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError(f"{value} has no time zone: fields of the type datetime need one")
    return value


def _fill_duration(value: timedelta, message: Any) -> None:
    message.FromTimedelta(value)


_LARGEST_SINGLE: Final = (2 - 2**-23) * 2.0**127
TIMESTAMP: Final = MessagePart(
    lambda message: message.ToMicroseconds(), None, lambda value, message: message.FromMicroseconds(value)
)
DATETIME: Final = MessagePart(
    lambda message: message.ToDatetime(tzinfo=UTC),
    None,
    lambda value, message: message.FromDatetime(_moment(value)),
)
DURATION: Final = MessagePart(lambda message: message.ToTimedelta(), None, _fill_duration)

_SAME: Final = MessagePart(None, None)
_TEXT: Final = MessagePart(None, msgspec.to_builtins)
"""A type that msgspec has as text, such as a Decimal."""
_UUID: Final = MessagePart(lambda value: UUID(bytes=value), attrgetter("bytes"))

_WHOLE: Final[Mapping[type, MessagePart]] = {inspect.IntType: _SAME}
_TEXTS: Final[Mapping[type, MessagePart]] = {
    inspect.StrType: _SAME,
    **dict.fromkeys(
        (inspect.DecimalType, inspect.UUIDType, inspect.DateType, inspect.TimeType, inspect.DateTimeType), _TEXT
    ),
}


def _scalars() -> Iterable[tuple[int, Mapping[type, MessagePart]]]:
    """By the number of a scalar type: the types of the program that it may have."""
    for name in (
        "INT32",
        "INT64",
        "UINT32",
        "UINT64",
        "SINT32",
        "SINT64",
        "FIXED32",
        "FIXED64",
        "SFIXED32",
        "SFIXED64",
    ):
        yield getattr(FieldDescriptor, f"TYPE_{name}"), _WHOLE
    yield FieldDescriptor.TYPE_FLOAT, {inspect.FloatType: MessagePart(None, _single)}
    yield FieldDescriptor.TYPE_DOUBLE, {inspect.FloatType: _SAME}
    yield FieldDescriptor.TYPE_BOOL, {inspect.BoolType: _SAME}
    yield FieldDescriptor.TYPE_STRING, _TEXTS
    yield FieldDescriptor.TYPE_BYTES, {inspect.BytesType: _SAME, inspect.UUIDType: _UUID}


SCALARS: Final[Mapping[int, Mapping[type, MessagePart]]] = dict(_scalars())
WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
