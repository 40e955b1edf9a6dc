"""A stream's record type as data. An injector checks records by it, and a master compares versions (4.1, 4.2).

:func:`record_schema` describes a type when a topology is submitted. :mod:`millwheel.sdk.schema_decoder` builds msgspec
types and a decoder from the description. msgspec therefore applies the same rules in the injector as in the consumer.

Invariant: the decoder of the schema accepts every value that the decoder of the type accepts. Without it, an injector
would reject valid records. The schema therefore describes a part that it cannot express as ``any``. It does not detect
what only the user's code rejects, in ``__post_init__`` or a codec.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, deque
from typing import Any, Final

import msgspec
from msgspec import inspect

from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.codecs import Codec, ValueFormat, format_of
from millwheel.sdk.typeinfo import describe_type, type_name

__all__ = ["ANY", "CONSTRAINTS", "STRUCT_OPTIONS", "record_schema"]

_MAX_TYPES: Final = 1_000
"""The most types in a schema. A larger type has no schema, because the schema is sent with each routing change."""

_BY_PLACE: Final = {"array_like": True, "forbid_unknown_fields": True}
"""The options of a struct that decodes in the same way as a named tuple."""

_CONTAINERS: Final[dict[Any, Any]] = {Counter: dict[Any, int], OrderedDict: dict[Any, Any], deque: list[Any]}
"""The encoding of containers that msgspec leaves to hooks. msgspec's description has no types of their items."""

CONSTRAINTS: Final = (
    "gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz",
)  # fmt: skip
"""The constraints of a type, by their names in :class:`msgspec.Meta`."""

STRUCT_OPTIONS: Final = ("tag_field", "tag", "array_like", "forbid_unknown_fields")
"""The options of a struct, by their names in :func:`msgspec.defstruct`."""

ANY: Final = "Any"
"""The option ``type`` of a kind ``any`` that has no class. Other such kinds have the name of their class."""

_PARTS: Final = ("key_type", "value_type", "item_type")


def record_schema(record_type: Any, codec: Codec[Any] | None = None) -> topology_pb2.RecordSchema | None:
    """The schema of a stream's type; None if the type is not encoded as MessagePack, or is very large."""
    if format_of(record_type, codec) is not ValueFormat.MSGPACK:
        return None
    description = _SchemaBuilder()
    description.add(describe_type(record_type))
    return description.schema if len(description.schema.types) <= _MAX_TYPES else None


class _SchemaBuilder:
    """A schema under construction."""

    def __init__(self) -> None:
        self.schema = topology_pb2.RecordSchema()
        self._classes: dict[int, int] = {}
        """By the id of msgspec's description: the index of each type with fields. Such a type may contain itself."""

    def add(self, info: inspect.Type) -> int:
        """Describe a type and all its parts. Returns its index."""
        while isinstance(info, inspect.Metadata):
            info = info.type
        if id(info) in self._classes:
            return self._classes[id(info)]
        index = len(self.schema.types)
        described = self.schema.types.add(kind=type(info).__name__.removesuffix("Type").lower())
        if index >= _MAX_TYPES:
            return index  # the type is too large, so the schema is dropped
        if hasattr(info, "fields"):
            self._classes[id(info)] = index
            self._describe_fields(described, info)
        elif isinstance(info, inspect.EnumType | inspect.LiteralType):
            _describe_values(described, info)
        elif isinstance(info, inspect.CustomType):
            self._describe_container(described, info.cls)
        elif isinstance(info, inspect.AnyType):
            _set_options(described, {"type": ANY})
        else:
            self._describe_parts(described, info)
        return index

    def _describe_fields(self, described: topology_pb2.TypeSchema, info: Any) -> None:
        described.kind = "struct"
        if isinstance(info, inspect.NamedTupleType):
            _set_options(described, _BY_PLACE)
        else:
            _set_options(described, {name: getattr(info, name, None) for name in STRUCT_OPTIONS})
        for field in info.fields:
            described.fields.add(name=field.encode_name, type=self.add(field.type), optional=not field.required)

    def _describe_container(self, described: topology_pb2.TypeSchema, cls: Any) -> None:
        described.kind = "any"
        if cls in _CONTAINERS:
            plain: Any = describe_type(_CONTAINERS[cls])
            described.kind = "list" if isinstance(plain, inspect.ListType) else "dict"
            self._describe_parts(described, plain)
        else:
            _set_options(described, {"type": ANY if cls is object else type_name(cls)})

    def _describe_parts(self, described: topology_pb2.TypeSchema, info: inspect.Type) -> None:
        parts = [getattr(info, name) for name in _PARTS if hasattr(info, name)]
        parts += getattr(info, "item_types", ())  # of a tuple
        parts += getattr(info, "types", ())  # of a union
        described.parts.extend([self.add(part) for part in parts])
        _set_options(described, {name: getattr(info, name, None) for name in CONSTRAINTS})


def _describe_values(described: topology_pb2.TypeSchema, info: inspect.EnumType | inspect.LiteralType) -> None:
    described.kind = "literal"
    if isinstance(info, inspect.LiteralType):
        _set_options(described, {"values": list(info.values)})
    elif getattr(info.cls._missing_, "__func__", None) is getattr(enum.Enum._missing_, "__func__", None):
        _set_options(described, {"values": list(info.cls._value2member_map_)})
    else:
        described.kind = "any"  # the class creates members for other values, as a Flag does
        _set_options(described, {"type": type_name(info.cls)})


def _set_options(described: topology_pb2.TypeSchema, options: dict[str, Any]) -> None:
    given = {name: value for name, value in options.items() if value is not None}
    if given:
        described.options = msgspec.msgpack.encode(given)
