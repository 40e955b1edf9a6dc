"""Values of the program's types as messages of generated classes: field by field, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from msgspec import NODEFAULT, inspect

from millwheel.connectors.kafka import protobuf_parts as parts
from millwheel.connectors.kafka.avro_times import timestamps_of
from millwheel.connectors.kafka.protobuf_parts import MessagePart, ReadPart, Step, WritePart

__all__ = ["MessageShapes"]

WithFields = inspect.StructType | inspect.DataclassType | inspect.TypedDictType


class _Unfit(Exception):
    """A field cannot have the type of the program."""


class _FieldPair(NamedTuple):
    """A field of both sides."""

    name: str
    get: Step
    """The program's value, of the value that has the field."""
    read: ReadPart
    write: WritePart


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
        times = timestamps_of(info.cls)
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
        may_be_missing = not one.required and one.default is NODEFAULT and one.default_factory is NODEFAULT
        if (may_be_none or may_be_missing) and not field.has_presence:
            advice = "" if field.is_repeated else ": write `optional` before it"
            problem = f"it may be None or missing, but the field of the message never is{advice}"
            self.unwritable.append(f"{at.path}: {problem}")
        if field.is_repeated:
            read, write = self._repeated(kind, field, at)
            return _FieldPair(field.name, get, read, write)
        item = self._item(kind, field, at)
        read = (
            parts.read_optional(field.name, item, may_be_none)
            if field.has_presence
            else parts.read_plain(field.name, item)
        )
        return _FieldPair(field.name, get, read, parts.write_one(field.name, item))

    def _repeated(self, kind: inspect.Type, field: FieldDescriptor, at: _Where) -> tuple[ReadPart, WritePart]:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            if not isinstance(kind, inspect.DictType):
                raise _Unfit("a map is read as a dict")
            keys = self._item(_bare(kind.key_type), entry.fields_by_name["key"], at._replace(is_time=False))
            place = at._replace(path=f"{at.path}{{}}")
            values = self._item(_bare(kind.value_type), entry.fields_by_name["value"], place)
            return parts.read_map(field.name, values), parts.write_map(field.name, keys, values)
        if not isinstance(kind, _ARRAYS):
            raise _Unfit("a repeated field is read as a list, a set, a frozenset or a tuple")
        item = self._item(_bare(kind.item_type), field, at._replace(path=f"{at.path}[]"))
        return parts.read_list(field.name, item), parts.write_list(field.name, item)

    def _item(self, kind: inspect.Type, field: FieldDescriptor, at: _Where) -> MessagePart:
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
            if named and named[0] in parts.SCALARS[field.type]:
                return MessagePart(None, parts.value_of)
        try:
            return parts.SCALARS[field.type][type(kind)]
        except KeyError:
            raise _Unfit(f"{_name(kind)} is not the type of {_article(_TYPE_NAMES[field.type])}") from None

    def _message(self, kind: inspect.Type, message: Descriptor, at: _Where) -> MessagePart:
        name = message.full_name
        if name == "google.protobuf.Timestamp":
            if isinstance(kind, inspect.IntType) and at.is_time:
                return parts.TIMESTAMP
            if isinstance(kind, inspect.DateTimeType) and kind.tz is not False:
                return parts.DATETIME
            raise _Unfit("a google.protobuf.Timestamp is read as mw.Timestamp, or as a datetime with a time zone")
        if name == "google.protobuf.Duration":
            if isinstance(kind, inspect.TimeDeltaType):
                return parts.DURATION
            raise _Unfit("a google.protobuf.Duration is read as a timedelta")
        if name in parts.WRAPPERS:
            return parts.wrapped(self._item(kind, message.fields_by_name["value"], at))
        if not isinstance(kind, WithFields):
            raise _Unfit(f"a message {name} is read as a Struct, a dataclass or a TypedDict")
        record = self._record(kind, message, at)
        return MessagePart(record.inward, None, record.fill)

    def _symbol(self, kind: inspect.Type, enum: EnumDescriptor, at: _Where) -> MessagePart:
        names = {one.number: one.name for one in reversed(enum.values)}  # of aliases, the first one
        numbers = {one.name: one.number for one in enum.values}
        if isinstance(kind, inspect.EnumType | inspect.LiteralType):
            values = _values(kind)
            if all(type(one) is int for one in values):
                return MessagePart(None, parts.value_of)
            unknown = [one for one in values if one not in numbers]
            if unknown:
                self.unwritable.append(f"{at.path}: {enum.full_name} has no {unknown[0]!r}")
        elif isinstance(kind, inspect.IntType):
            return MessagePart(None, None)
        elif not isinstance(kind, inspect.StrType):
            raise _Unfit(f"{_name(kind)} is not the type of an enum: read it as an Enum of its names, str or int")

        def inward(number: int) -> str:
            if number not in names:
                raise ValueError(f"{at.path} is {number}, and {enum.full_name} has no name for it")
            return names[number]

        def outward(value: Any) -> int:
            name = parts.value_of(value)
            if name not in numbers:
                raise ValueError(f"{at.path} is {name!r}, and {enum.full_name} does not have it")
            return numbers[name]

        return MessagePart(inward, outward)


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


_ARRAYS: Final = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)
_TYPE_NAMES: Final = {
    number: name.removeprefix("TYPE_").lower() for name, number in vars(FieldDescriptor).items() if name[:5] == "TYPE_"
}
