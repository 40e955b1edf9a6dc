"""The stored form of a state type: each field with its path, to compare versions (section 4.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from msgspec import inspect

from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.codecs import Codec, ValueFormat, format_of
from millwheel.sdk.typeinfo import describe_type, supertype, type_name

__all__ = ["state_schema"]

_MAX_FIELDS: Final = 1_000
"""The most fields in a schema."""


_Row = tuple[str, str, bool]
"""The path and type of a field, and whether a state without the field can be decoded."""


def state_schema(state_type: Any, codec: Codec[Any] | None, version: int) -> topology_pb2.StateSchema:
    """The schema of a state type. For a user's codec it has only one entry, for the whole state."""
    value_format = format_of(state_type, codec)
    rows: Iterator[_Row]
    if value_format is ValueFormat.PROTOBUF:
        rows = _message(supertype(state_type).DESCRIPTOR, "", frozenset())
    elif value_format is ValueFormat.MSGPACK:
        rows = _value(describe_type(state_type), "", False, frozenset())
    else:
        rows = iter([("", type_name(state_type), False)])
    found: dict[str, _Row] = {}
    for row in rows:
        found.setdefault(row[0], row)
        if len(found) == _MAX_FIELDS:
            break
    fields = [topology_pb2.StateField(path=path, type=kind, optional=lax) for path, kind, lax in sorted(found.values())]
    return topology_pb2.StateSchema(format=value_format.value, fields=fields, version=version)


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


def _shape(info: inspect.Type) -> str:
    """The kind of a value. It has no names of the user's classes, because these are not stored."""
    if isinstance(info, inspect.StructType):
        kind = "list of fields" if info.array_like else "fields"
        return f"{kind} tagged {info.tag!r}" if info.tag is not None else kind
    if isinstance(info, inspect.DataclassType | inspect.TypedDictType):
        return "fields"
    if isinstance(info, inspect.NamedTupleType):
        return "list of fields"
    if isinstance(info, inspect.EnumType):
        return "one of " + ", ".join(repr(member.value) for member in info.cls)
    if isinstance(info, inspect.LiteralType):
        return "one of " + ", ".join(map(repr, info.values))
    if isinstance(info, inspect.CustomType):
        return info.cls.__name__
    kind = type(info).__name__.removesuffix("Type").lower()
    inner = [_shape(getattr(info, name)) for name in ("key_type", "item_type", "value_type") if hasattr(info, name)]
    inner += [_shape(item) for item in getattr(info, "item_types", ())]
    if isinstance(info, inspect.UnionType):
        return " or ".join(sorted(_shape(member) for member in info.types))
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
