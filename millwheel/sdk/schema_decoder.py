"""A decoder for a record type of which only the schema is known (section 4.2). It runs no user code."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, Union
from uuid import UUID

import msgspec

from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.record_schema import CONSTRAINTS, STRUCT_OPTIONS
from millwheel.sdk.unsafe_types import refuse_unsafe

__all__ = ["schema_decoder"]

_SCALARS: Final[dict[str, Any]] = {
    "none": None,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "datetime": datetime,
    "time": time,
    "date": date,
    "timedelta": timedelta,
    "uuid": UUID,
    "decimal": Decimal,
}

_GENERICS: Final[dict[str, Any]] = {
    "list": list,
    "set": set,
    "frozenset": frozenset,
    "tuple": tuple,
    "vartuple": tuple,
    "dict": dict,
    "frozendict": dict,
    "union": Union,
}


def schema_decoder(schema: topology_pb2.RecordSchema) -> Callable[[bytes], Any] | None:
    """A decoder of the values of a schema's type, as plain structs. It runs no user code.

    Returns:
        The decoder, which raises ValueError for bytes that are no value of the type. None if every value is of the
        type.

    Raises:
        Exception: msgspec cannot build a type from the schema.
    """
    made = _Types(schema).make(0)
    refuse_unsafe(made)
    return None if made is Any else msgspec.msgpack.Decoder(made).decode


class _Types:
    """The types of a schema as msgspec types."""

    def __init__(self, schema: topology_pb2.RecordSchema) -> None:
        self._types = schema.types
        self._classes: dict[int, Any] = {}

    def make(self, index: int) -> Any:
        """The type with this index."""
        described = self._types[index]
        if described.kind == "struct":
            return self._classes[index] if index in self._classes else self._struct(index)
        options = _options(described)
        made = self._shape(described, options)
        constraints = {name: options[name] for name in CONSTRAINTS if name in options}
        return Annotated[made, msgspec.Meta(**constraints)] if constraints and made is not Any else made

    def _shape(self, described: topology_pb2.TypeSchema, options: dict[str, Any]) -> Any:
        if described.kind in _SCALARS:
            return _SCALARS[described.kind]
        if described.kind == "literal":
            return Literal[tuple(options["values"])]
        parts = tuple(self.make(part) for part in described.parts)
        if described.kind == "vartuple":
            parts += (...,)
        return _GENERICS[described.kind][parts] if described.kind in _GENERICS else Any

    def _struct(self, index: int) -> Any:
        """A struct with the same fields. Its Python names do not matter, because errors contain the encoded names."""
        described = self._types[index]
        options = _options(described)
        names = [f"f{number}" for number in range(len(described.fields))]
        made = msgspec.defstruct(
            "Record",
            [
                (name, Any, None) if field.optional else (name, Any)
                for name, field in zip(names, described.fields, strict=True)
            ],
            rename={name: field.name for name, field in zip(names, described.fields, strict=True)},
            kw_only=True,  # fields without a default may follow fields with one
            eq=False,  # hashable, because it may be in a set
            **{name: options[name] for name in STRUCT_OPTIONS if name in options},
        )
        self._classes[index] = made
        # msgspec reads the annotations when the first decoder is made. Only now can they refer to the class itself.
        made.__annotations__ = {
            name: self.make(field.type) for name, field in zip(names, described.fields, strict=True)
        }
        return made


def _options(described: topology_pb2.TypeSchema) -> dict[str, Any]:
    return msgspec.msgpack.decode(described.options, type=dict[str, Any]) if described.options else {}
