"""Types of records and states as types of Arrow, and the conversion of their values. Pure.

docs/arrow.md has the table. What has no type in Arrow becomes its JSON text: no value is lost, and none stops a reader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

import msgspec
import pyarrow as pa

from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["ArrowType", "arrow_type", "json_text", "struct_fields"]

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class ArrowType:
    """A type of Arrow, and what makes a value for it of a value that MessagePack decodes to.

    ``convert``: None if pyarrow takes the value as it is. It never gets None.
    """

    type: pa.DataType
    convert: Convert | None = None

    def values(self, found: list[Any]) -> list[Any]:
        """Values as pyarrow takes them. None stays."""
        convert = self.convert
        return found if convert is None else [None if one is None else convert(one) for one in found]


@dataclass(frozen=True, slots=True)
class StructField:
    """A field of a struct.

    ``of``: returns its value in a struct, which may be a list. None if it has none."""

    name: str
    kind: ArrowType
    of: Convert


def json_text(value: Any) -> str:
    """A value as JSON: bytes as base64, keys as texts. If JSON has no form for it, its form in Python."""
    try:
        return msgspec.json.encode(value).decode()
    except TypeError:
        return repr(value)


_JSON: Final = ArrowType(pa.string(), json_text)
_SCALARS: Final = MappingProxyType(
    {
        "bool": ArrowType(pa.bool_()),
        "int": ArrowType(pa.int64()),
        "float": ArrowType(pa.float64()),
        "str": ArrowType(pa.string()),
        "bytes": ArrowType(pa.binary()),
        "bytearray": ArrowType(pa.binary()),
        "memoryview": ArrowType(pa.binary()),
        "date": ArrowType(pa.date32(), date.fromisoformat),
        "time": ArrowType(pa.string()),
        "timedelta": ArrowType(pa.duration("us"), lambda value: msgspec.convert(value, timedelta)),
        # Texts in MessagePack, too: a text keeps all digits.
        "decimal": ArrowType(pa.string()),
        "uuid": ArrowType(pa.string()),
    }
)
_LISTS: Final = frozenset({"list", "set", "frozenset", "vartuple"})
_KEYS: Final = frozenset({"str", "int", "bytes", "bool", "decimal", "uuid", "literal"})
"""The kinds of a dict's keys that a map of Arrow has, and tuples of them."""


def arrow_type(schema: specs.RecordSchema, index: int = 0) -> ArrowType:
    """The type of Arrow for a type of a schema."""
    return _ArrowTypes(schema).make(index)


def struct_fields(schema: specs.RecordSchema) -> list[StructField] | None:
    """The fields of a schema's type. None if it is no struct, or has no fields."""
    return _ArrowTypes(schema).fields(0) if schema.types[0].kind == "struct" and schema.types[0].fields else None


class _ArrowTypes:
    """Makes the types of one schema."""

    def __init__(self, schema: specs.RecordSchema) -> None:
        self._types = schema.types
        self._above: list[int] = []
        """The structs that are being made. A type that contains itself has no end in Arrow."""

    def make(self, index: int) -> ArrowType:
        """The type with this index."""
        described = self._types[index]
        kind = described.kind
        if kind in _SCALARS:
            return _SCALARS[kind]
        if kind == "datetime":
            return _datetime(_options(described).get("tz"))
        if kind == "literal":
            return _literal(_options(described)["values"])
        if kind in _LISTS:
            return self._list(described.parts[0])
        if kind in ("dict", "frozendict"):
            return self._map(*described.parts)
        if kind == "tuple":
            return _struct(self._places(list(described.parts)))
        if kind == "union":
            return self._union(list(described.parts))
        if kind == "struct" and described.fields and index not in self._above:
            return _struct(self.fields(index))
        return _JSON

    def fields(self, index: int) -> list[StructField]:
        """The fields of a struct. One that is encoded as a list has them by their places."""
        described = self._types[index]
        options = _options(described)
        self._above.append(index)
        try:
            kinds = [self.make(field.type) for field in described.fields]
        finally:
            self._above.pop()
        by_place = options.get("array_like", False)
        first = 1 if "tag" in options else 0
        return [
            StructField(field.name, kind, _at(first + number) if by_place else _named(field.name))
            for number, (field, kind) in enumerate(zip(described.fields, kinds, strict=True))
        ]

    def _places(self, parts: list[int]) -> list[StructField]:
        return [StructField(f"_{place + 1}", self.make(part), _at(place)) for place, part in enumerate(parts)]

    def _list(self, part: int) -> ArrowType:
        items = self.make(part)
        return ArrowType(pa.list_(items.type), None if items.convert is None else items.values)

    def _map(self, key: int, value: int) -> ArrowType:
        if not self._is_key(key):
            return _JSON
        keys, values = self.make(key), self.make(value)

        def pairs(found: dict[Any, Any]) -> list[tuple[Any, Any]]:
            return list(zip(keys.values(list(found)), values.values(list(found.values())), strict=True))

        return ArrowType(pa.map_(keys.type, values.type), pairs)

    def _is_key(self, index: int) -> bool:
        """Whether a map of Arrow may have keys of this type. Windows have pairs of times as keys."""
        described = self._types[index]
        return described.kind in _KEYS or (described.kind == "tuple" and all(map(self._is_key, described.parts)))

    def _union(self, parts: list[int]) -> ArrowType:
        """Each type of Arrow takes null. A union of several others has none."""
        others = [part for part in parts if self._types[part].kind != "none"]
        if len(others) == 1:
            return self.make(others[0])
        if {self._types[part].kind for part in others} == {"int", "float"}:
            return _SCALARS["float"]
        return _JSON


def _options(described: specs.TypeSchema) -> dict[str, Any]:
    return msgspec.msgpack.decode(described.options, type=dict[str, Any]) if described.options else {}


def _datetime(zoned: bool | None) -> ArrowType:
    if zoned is False:
        return ArrowType(pa.timestamp("us"), lambda value: _moment(value).replace(tzinfo=None))
    return ArrowType(pa.timestamp("us", "UTC"), _moment)


def _moment(value: datetime | str) -> datetime:
    """A time. MessagePack has one without a zone as a text. It counts as UTC."""
    found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _literal(values: list[Any]) -> ArrowType:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {str}:
        return _SCALARS["str"]
    return _SCALARS["int"] if kinds == {int} else _JSON


def _struct(fields: list[StructField]) -> ArrowType:
    def struct(value: Any) -> dict[str, Any]:
        found = {}
        for field in fields:
            inner = field.of(value)
            convert = field.kind.convert
            found[field.name] = inner if inner is None or convert is None else convert(inner)
        return found

    return ArrowType(pa.struct([pa.field(field.name, field.kind.type) for field in fields]), struct)


def _named(name: str) -> Convert:
    return lambda value: value.get(name)


def _at(place: int) -> Convert:
    return lambda value: value[place] if place < len(value) else None
