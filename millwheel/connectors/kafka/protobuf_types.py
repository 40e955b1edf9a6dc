"""Values of the program's types as messages of generated classes: field by field, by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from math import isfinite
from operator import attrgetter
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from msgspec import inspect

from millwheel.model.time import Timestamp

__all__ = ["MessageShapes"]

Step = Callable[[Any], Any]
WithFields = inspect.StructType | inspect.DataclassType | inspect.TypedDictType


class _Unfit(Exception):
    """A field cannot have the type of the program."""


class _Part(NamedTuple):
    """What a field has once: a scalar or a message."""

    inward: Step | None
    """From what the message has to what ``msgspec.convert`` takes. None: it is the same."""
    outward: Step | None
    """From the program's value to the scalar. None: it is the same."""
    fill: Callable[[Any, Any], None] | None = None
    """Puts the program's value into a message. None: it is a scalar."""


class _FieldPair(NamedTuple):
    """A field of both sides."""

    name: str
    get: Step
    """The program's value, of the value that has the field."""
    read: Callable[[Message, dict[str, Any]], None]
    write: Callable[[Any, Message], None]
    """Called for what is not None."""


class _Where(NamedTuple):
    """Where a type is."""

    path: str
    is_time: bool
    """Whether its integers are Timestamps, which msgspec does not know."""


class MessageShapes:
    """Fits a type of the program to a message.

    Attributes:
        unreadable: Why no message can be read as the type.
        unwritable: Why the type cannot be written. It may still be read.
    """

    def __init__(self, kind: Any, message: Any) -> None:
        self.unreadable: list[str] = []
        self.unwritable: list[str] = []
        self._records: dict[tuple[Any, str], _Fields] = {}
        info = inspect.type_info(kind)
        self._whole: _Fields | None = None
        if isinstance(info, WithFields):
            self._whole = self._record(info, message, _Where("it", False))
        else:
            self.unreadable.append("it: a message is read as a Struct, a dataclass or a TypedDict")

    def plain(self, message: Message) -> Any:
        """What ``msgspec.convert`` takes for the type.

        Raises:
            ValueError: The message has what the type cannot have.
        """
        assert self._whole is not None
        return self._whole.inward(message)

    def fill(self, value: Any, message: Message) -> None:
        """Put a value into a message.

        Raises:
            ValueError: The message cannot have it. So does TypeError.
        """
        assert self._whole is not None
        self._whole.fill(value, message)

    def _record(self, info: Any, message: Descriptor, at: _Where) -> _Fields:
        known = self._records.get((info.cls, message.full_name))
        if known is not None:  # also within itself: its fields may not all be there yet
            return known
        record = self._records[info.cls, message.full_name] = _Fields(message)
        if getattr(info, "array_like", False):
            self.unreadable.append(f"{at.path}: a Struct with array_like=True has no names of fields")
        tag = getattr(info, "tag", None)
        record.tag = {} if tag is None else {getattr(info, "tag_field", ""): tag}
        times = _timestamps(info.cls)
        for one in info.fields:
            place = _Where(f"{at.path}.{one.encode_name}", one.name in times)
            field = message.fields_by_name.get(one.encode_name)
            if field is None:
                problems = self.unreadable if one.required else self.unwritable
                problems.append(f"{place.path}: the message {message.full_name} has no such field")
                continue
            try:
                record.fields.append(self._field(info, one, field, place))
            except _Unfit as error:
                self.unreadable.append(f"{place.path}: {error}")
        missing = {one.name for one in message.fields if one.is_required} - {one.name for one in record.fields}
        self.unwritable += [f"{at.path}: a {message.full_name} needs {name}, too" for name in sorted(missing)]
        return record

    def _field(self, info: Any, one: inspect.Field, field: FieldDescriptor, at: _Where) -> _FieldPair:
        kind, may_be_none = _without_none(one.type)
        get = _getter(info, one.name)
        if may_be_none and not field.has_presence:
            how = (
                "never missing" if field.is_repeated else "not missing when it has no value: write `optional` before it"
            )
            self.unwritable.append(f"{at.path}: it may be None, but the field of the message is {how}")
        if field.is_repeated:
            read, write = self._repeated(kind, field, at)
            return _FieldPair(field.name, get, read, write)
        item = self._item(kind, field, at)
        read = _read_optional(field.name, item, may_be_none) if field.has_presence else _read_plain(field.name, item)
        return _FieldPair(field.name, get, read, _write_one(field.name, item))

    def _repeated(self, kind: inspect.Type, field: FieldDescriptor, at: _Where) -> tuple[Any, Any]:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            if not isinstance(kind, inspect.DictType):
                raise _Unfit("a map is read as a dict")
            keys = self._item(_bare(kind.key_type), entry.fields_by_name["key"], at._replace(is_time=False))
            place = at._replace(path=f"{at.path}{{}}")
            values = self._item(_bare(kind.value_type), entry.fields_by_name["value"], place)
            return _read_map(field.name, values), _write_map(field.name, keys, values)
        if not isinstance(kind, _ARRAYS):
            raise _Unfit("a repeated field is read as a list, a set, a frozenset or a tuple")
        item = self._item(_bare(kind.item_type), field, at._replace(path=f"{at.path}[]"))
        return _read_list(field.name, item), _write_list(field.name, item)

    def _item(self, kind: inspect.Type, field: FieldDescriptor, at: _Where) -> _Part:
        if field.message_type is not None:
            return self._message(kind, field.message_type, at)
        if field.enum_type is not None:
            return self._symbol(kind, field.enum_type, at)
        if at.is_time and isinstance(kind, inspect.IntType):
            raise _Unfit("a number does not say its unit, so it is no Timestamp: read it as int")
        if isinstance(kind, inspect.EnumType | inspect.LiteralType):
            values = _values(kind)
            kinds: Mapping[type, type] = {str: inspect.StrType, int: inspect.IntType}
            named = [name for one, name in kinds.items() if all(type(value) is one for value in values)]
            if named and named[0] in _SCALARS[field.type]:
                return _Part(None, _value_of)
        try:
            return _SCALARS[field.type][type(kind)]
        except KeyError:
            raise _Unfit(f"{_name(kind)} is not the type of {_article(_TYPE_NAMES[field.type])}") from None

    def _message(self, kind: inspect.Type, message: Descriptor, at: _Where) -> _Part:
        name = message.full_name
        if name == "google.protobuf.Timestamp":
            if isinstance(kind, inspect.IntType) and at.is_time:
                return _TIMESTAMP
            if isinstance(kind, inspect.DateTimeType) and kind.tz is not False:
                return _DATETIME
            raise _Unfit("a google.protobuf.Timestamp is read as mw.Timestamp, or as a datetime with a time zone")
        if name == "google.protobuf.Duration":
            if isinstance(kind, inspect.TimeDeltaType):
                return _DURATION
            raise _Unfit("a google.protobuf.Duration is read as a timedelta")
        if name in _WRAPPERS:
            return _wrapped(self._item(kind, message.fields_by_name["value"], at))
        if not isinstance(kind, WithFields):
            raise _Unfit(f"a message {name} is read as a Struct, a dataclass or a TypedDict")
        record = self._record(kind, message, at)
        return _Part(record.inward, None, record.fill)

    def _symbol(self, kind: inspect.Type, enum: EnumDescriptor, at: _Where) -> _Part:
        names = {one.number: one.name for one in reversed(enum.values)}  # of aliases, the first one
        numbers = {one.name: one.number for one in enum.values}
        if isinstance(kind, inspect.EnumType | inspect.LiteralType):
            values = _values(kind)
            if all(type(one) is int for one in values):
                return _Part(None, _value_of)
            unknown = [one for one in values if one not in numbers]
            if unknown:
                self.unwritable.append(f"{at.path}: {enum.full_name} has no {unknown[0]!r}")
        elif isinstance(kind, inspect.IntType):
            return _Part(None, None)
        elif not isinstance(kind, inspect.StrType):
            raise _Unfit(f"{_name(kind)} is not the type of an enum: read it as an Enum of its names, str or int")

        def inward(number: int) -> str:
            if number not in names:
                raise ValueError(f"{at.path} is {number}, and {enum.full_name} has no name for it")
            return names[number]

        def outward(value: Any) -> int:
            name = _value_of(value)
            if name not in numbers:
                raise ValueError(f"{at.path} is {name!r}, and {enum.full_name} does not have it")
            return numbers[name]

        return _Part(inward, outward)


class _Fields:
    """The fields of a type that a message has, too."""

    def __init__(self, message: Descriptor) -> None:
        self.fields: list[_FieldPair] = []
        self.tag: dict[str, Any] = {}
        """The field that distinguishes the Structs of a union, with its value."""
        self._oneofs = [frozenset(field.name for field in one.fields) for one in message.oneofs if len(one.fields) > 1]

    def inward(self, message: Message) -> dict[str, Any]:
        plain = dict(self.tag)
        for field in self.fields:
            field.read(message, plain)
        return plain

    def fill(self, value: Any, message: Message) -> None:
        filled = set()
        for field in self.fields:
            part = field.get(value)
            if part is not None:
                field.write(part, message)
                filled.add(field.name)
        for oneof in self._oneofs:
            if len(both := sorted(filled & oneof)) > 1:
                raise ValueError(f"a message has one of {' and '.join(both)}, and not both: let the others be None")


def _without_none(info: inspect.Type) -> tuple[inspect.Type, bool]:
    """A type, and whether it may also be None."""
    info = _bare(info)
    if not isinstance(info, inspect.UnionType):
        return info, isinstance(info, inspect.NoneType)
    others = [one for one in info.types if not isinstance(_bare(one), inspect.NoneType)]
    return (_bare(others[0]) if len(others) == 1 else info), len(others) < len(info.types)


def _bare(info: inspect.Type) -> inspect.Type:
    return _bare(info.type) if isinstance(info, inspect.Metadata) else info


def _values(kind: Any) -> tuple[Any, ...]:
    """The values of an Enum or a Literal."""
    return tuple(one.value for one in kind.cls) if isinstance(kind, inspect.EnumType) else tuple(kind.values)


def _name(kind: inspect.Type) -> str:
    return type(kind).__name__.removesuffix("Type").lower()


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"


def _getter(info: Any, name: str) -> Step:
    if isinstance(info, inspect.TypedDictType):
        return lambda value: value.get(name)
    return attrgetter(name)


def _timestamps(cls: Any) -> set[str]:
    """The fields of a class that have Timestamps. msgspec takes these for integers."""
    hints = get_type_hints(get_origin(cls) or cls, include_extras=True)
    return {name for name, hint in hints.items() if _has_timestamp(hint)}


def _has_timestamp(hint: Any) -> bool:
    return hint is Timestamp or any(_has_timestamp(one) for one in get_args(hint))


def _read_plain(name: str, item: _Part) -> Any:
    inward = item.inward

    def read(message: Message, plain: dict[str, Any]) -> None:
        value = getattr(message, name)
        plain[name] = value if inward is None else inward(value)

    return read


def _read_optional(name: str, item: _Part, may_be_none: bool) -> Any:
    """A field that is missing is None, or else it is left to the type's default."""
    read_set = _read_plain(name, item)

    def read(message: Message, plain: dict[str, Any]) -> None:
        if message.HasField(name):
            read_set(message, plain)
        elif may_be_none:
            plain[name] = None

    return read


def _read_list(name: str, item: _Part) -> Any:
    inward = item.inward

    def read(message: Message, plain: dict[str, Any]) -> None:
        values = getattr(message, name)
        plain[name] = list(values) if inward is None else [inward(one) for one in values]

    return read


def _read_map(name: str, item: _Part) -> Any:
    inward = item.inward

    def read(message: Message, plain: dict[str, Any]) -> None:
        values = getattr(message, name).items()
        plain[name] = dict(values) if inward is None else {key: inward(value) for key, value in values}

    return read


def _write_one(name: str, item: _Part) -> Any:
    if (fill := item.fill) is not None:

        def put(value: Any, message: Message) -> None:
            part = getattr(message, name)
            part.SetInParent()  # it may have no field that is set
            fill(value, part)

        return put
    outward = item.outward
    return lambda value, message: setattr(message, name, value if outward is None else outward(value))


def _write_list(name: str, item: _Part) -> Any:
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


def _write_map(name: str, keys: _Part, item: _Part) -> Any:
    def put(values: Any, message: Message) -> None:
        parts = getattr(message, name)
        for key, value in values.items():
            key = key if keys.outward is None else keys.outward(key)
            if item.fill is not None:
                item.fill(value, parts[key])
            else:
                parts[key] = value if item.outward is None else item.outward(value)

    return put


def _wrapped(item: _Part) -> _Part:
    """The item of a message that has one scalar, so that it may be missing."""
    inward, outward = item.inward, item.outward

    def fill(value: Any, message: Any) -> None:
        message.value = value if outward is None else outward(value)

    return _Part(lambda message: message.value if inward is None else inward(message.value), None, fill)


def _value_of(value: Any) -> Any:
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
_ARRAYS: Final = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)
_TIMESTAMP: Final = _Part(
    lambda message: message.ToMicroseconds(), None, lambda value, message: message.FromMicroseconds(value)
)
_DATETIME: Final = _Part(
    lambda message: message.ToDatetime(tzinfo=UTC),
    None,
    lambda value, message: message.FromDatetime(_moment(value)),
)
_DURATION: Final = _Part(lambda message: message.ToTimedelta(), None, _fill_duration)

_SAME: Final = _Part(None, None)
_TEXT: Final = _Part(None, msgspec.to_builtins)
"""A type that msgspec has as text, such as a Decimal."""
_UUID: Final = _Part(lambda value: UUID(bytes=value), attrgetter("bytes"))

_WHOLE: Final[Mapping[type, _Part]] = {inspect.IntType: _SAME}
_TEXTS: Final[Mapping[type, _Part]] = {
    inspect.StrType: _SAME,
    **dict.fromkeys(
        (inspect.DecimalType, inspect.UUIDType, inspect.DateType, inspect.TimeType, inspect.DateTimeType), _TEXT
    ),
}


def _scalars() -> Iterable[tuple[int, Mapping[type, _Part]]]:
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
    yield FieldDescriptor.TYPE_FLOAT, {inspect.FloatType: _Part(None, _single)}
    yield FieldDescriptor.TYPE_DOUBLE, {inspect.FloatType: _SAME}
    yield FieldDescriptor.TYPE_BOOL, {inspect.BoolType: _SAME}
    yield FieldDescriptor.TYPE_STRING, _TEXTS
    yield FieldDescriptor.TYPE_BYTES, {inspect.BytesType: _SAME, inspect.UUIDType: _UUID}


_SCALARS: Final[Mapping[int, Mapping[type, _Part]]] = dict(_scalars())
_TYPE_NAMES: Final = {
    number: name.removeprefix("TYPE_").lower() for name, number in vars(FieldDescriptor).items() if name[:5] == "TYPE_"
}
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
