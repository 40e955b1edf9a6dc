"""The stored form of a state type: each field with its path, to compare versions (section 4.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from msgspec import inspect

from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.codecs import Codec, ValueFormat, format_of
from millwheel.sdk.growing.collections import SetState
from millwheel.sdk.growing.fields import COLLECTIONS, GrowingState, is_growing, plan_of
from millwheel.sdk.growing.migrated import Conversion
from millwheel.sdk.record_schema import record_schema
from millwheel.sdk.typeinfo import cached_by_type, describe_type, supertype, type_name

__all__ = ["DROPPED", "GROWING_STATE", "state_schema"]

GROWING_STATE: Final = "growing state"
"""The type of a whole state that grows. Such a state is stored as a head and pages, and no other type reads these."""
DROPPED: Final = "dropped collection"
"""The type of a field that an earlier version had, and whose name must not be used again."""
_MAX_FIELDS: Final = 1_000
"""The most fields in a schema."""


_Row = tuple[str, str, bool]
"""The path and type of a field, and whether a state without the field can be decoded."""


def state_schema(state_type: Any, codec: Codec[Any] | None, version: int) -> topology_pb2.StateSchema:
    """The schema of a state type. For a user's codec it has only one entry, for the whole state."""
    growing = is_growing(state_type)
    value_format = ValueFormat.MSGPACK if growing else format_of(state_type, codec)
    rows: Iterable[_Row]
    if growing:
        rows = _distinct(_growing(supertype(state_type)))
    elif value_format is ValueFormat.MSGPACK:
        rows = _msgpack_rows(state_type)
    else:
        rows = _distinct(_stored(state_type, value_format, ""))
    made = topology_pb2.StateSchema(format=value_format.value, fields=_fields(rows), version=version)
    if (schema := record_schema(plan_of(supertype(state_type)).plain if growing else state_type, codec)) is not None:
        made.schema.CopyFrom(schema)
    if growing:
        for name, field in sorted(plan_of(supertype(state_type)).collections.items()):
            if field.conversions:
                made.conversions.add(field=name, functions=[_conversion(name, one) for one in field.conversions])
    return made


def _fields(rows: Iterable[_Row]) -> list[topology_pb2.StateField]:
    return [topology_pb2.StateField(path=path, type=kind, optional=lax) for path, kind, lax in rows]


def _conversion(name: str, one: Conversion) -> topology_pb2.ElementConversion:
    return topology_pb2.ElementConversion(name=one.name, takes=_fields(_distinct(_elements(one.taken, name))))


def _elements(element: Any, name: str) -> Iterator[_Row]:
    return _stored(element, format_of(element, None), f"{name}[]")


@cached_by_type
def _msgpack_rows(state_type: Any) -> list[_Row]:
    return _distinct(_value(describe_type(state_type), "", False, frozenset()))


def _distinct(rows: Iterable[_Row]) -> list[_Row]:
    """The first row of each path, sorted, up to the limit."""
    found: dict[str, _Row] = {}
    for row in rows:
        found.setdefault(row[0], row)
        if len(found) == _MAX_FIELDS:
            break
    return sorted(found.values())


def _stored(value_type: Any, value_format: ValueFormat, path: str) -> Iterator[_Row]:
    if value_format is ValueFormat.PROTOBUF:
        if path:
            yield path, "message", False
        yield from _message(supertype(value_type).DESCRIPTOR, path, frozenset())
    elif value_format is ValueFormat.MSGPACK:
        yield from _value(describe_type(value_type), path, False, frozenset())
    else:
        yield path, type_name(value_type), False


def _growing(state_type: type[GrowingState]) -> Iterator[_Row]:
    """The fields of a growing state. The elements of a collection are below its field, and so are its keys.

    A key is found by its encoding. So a type of keys is one row, with everything that changes encodings.
    """
    plan = plan_of(state_type)
    yield "", GROWING_STATE, False
    yield from _value(describe_type(plan.plain), "", False, frozenset())
    for name in plan.dropped:
        yield name, DROPPED, True
    for name, field in plan.collections.items():
        yield name, COLLECTIONS[field.kind], True
        if field.kind is SetState:
            yield f"{name}[]", _key(field.elements.type), False
        else:
            yield from _elements(field.elements.type, name)
        if field.keys is not None:
            yield f"{name}[key]", _key(field.keys.type), False


def _key(key_type: Any) -> str:
    if format_of(key_type, None) is ValueFormat.MSGPACK:
        return _shape(describe_type(key_type), in_order=True)
    return type_name(key_type)


def _value(info: inspect.Type, path: str, optional: bool, above: frozenset[Any]) -> Iterator[_Row]:
    yield path, _shape(info), optional
    for inner, suffix in _inside(info):
        if not isinstance(
            inner, inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType
        ):
            continue
        # A generic class is listed with its arguments, because each choice of arguments has its own fields.
        if inner.cls not in above:
            by_place = _shape(inner).startswith("list")
            for index, field in enumerate(inner.fields):
                named = f"{field.encode_name} (at {index})" if by_place else field.encode_name
                place = f"{path}{suffix}.{named}".removeprefix(".")
                yield from _value(field.type, place, not field.required, above | {inner.cls})


def _inside(info: inspect.Type, suffix: str = "") -> Iterator[tuple[inspect.Type, str]]:
    """A type and the types inside its containers, each with the suffix of its path."""
    yield info, suffix
    for name, mark in (("item_type", "[]"), ("key_type", "{}"), ("value_type", "[]")):
        if hasattr(info, name):
            yield from _inside(getattr(info, name), suffix + mark)
    for index, item in enumerate(getattr(info, "item_types", ())):
        yield from _inside(item, f"{suffix}[{index}]")
    for member in getattr(info, "types", ()):
        yield from _inside(member, suffix)


def _shape(info: inspect.Type, *, in_order: bool = False) -> str:
    """The kind of a value. It has no names of the user's classes, because these are not stored.

    Args:
        info: The type of the value.
        in_order: Whether the kind of an object contains its fields, in the order in which they are encoded.
    """
    if isinstance(info, inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType):
        by_place = isinstance(info, inspect.NamedTupleType) or getattr(info, "array_like", False)
        kind = "list of fields" if by_place else "fields"
        if in_order:
            kind += f" ({', '.join(f'{one.encode_name}: {_shape(one.type, in_order=True)}' for one in info.fields)})"
        tag = getattr(info, "tag", None)
        where = f" in {info.tag_field!r}" if in_order and isinstance(info, inspect.StructType) else ""
        return kind if tag is None else f"{kind} tagged {tag!r}{where}"
    if isinstance(info, inspect.EnumType):
        return "one of " + ", ".join(repr(member.value) for member in info.cls)
    if isinstance(info, inspect.LiteralType):
        return "one of " + ", ".join(map(repr, info.values))
    if isinstance(info, inspect.CustomType):
        return info.cls.__name__
    kind = type(info).__name__.removesuffix("Type").lower()
    parts = [getattr(info, name) for name in ("key_type", "item_type", "value_type") if hasattr(info, name)]
    inner = [_shape(part, in_order=in_order) for part in (*parts, *getattr(info, "item_types", ()))]
    if isinstance(info, inspect.UnionType):
        return " or ".join(sorted(_shape(member, in_order=in_order) for member in info.types))
    return f"{kind} of {', '.join(inner)}" if inner else kind


def _message(descriptor: Descriptor, path: str, above: frozenset[str]) -> Iterator[_Row]:
    for field in descriptor.fields:
        place = f"{path}.{field.name}".removeprefix(".")
        kind = FieldDescriptor.__dict__
        names = {number: name for name, number in kind.items() if name.startswith("TYPE_") and isinstance(number, int)}
        text = names.get(field.type, str(field.type)).removeprefix("TYPE_").lower()
        many = "repeated " if field.is_repeated else ""
        yield place, f"{many}{text} = {field.number}", True
        if field.message_type is not None and field.message_type.full_name not in above:
            yield from _message(field.message_type, place, above | {field.message_type.full_name})
