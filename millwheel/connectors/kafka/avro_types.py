"""What Avro makes of the types of a program: schemas, and values on their way out and in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from msgspec import NODEFAULT, inspect

from millwheel.connectors.kafka.avro_times import has_timestamp, holds_timestamps, timestamps_of

__all__ = ["NATIVE", "Shape", "Shapes"]

Step = Callable[[Any], Any]

NATIVE: Final = (bytes, date, datetime, Decimal, time, UUID)
"""Values that go to fastavro as they are."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_EMPTY: Final[dict[Any, Any]] = {list: [], set: [], frozenset: [], dict: {}}
"""What these functions return, in JSON."""
_PRECISION: Final = "write Annotated[Decimal, msgspec.Meta(extra={'precision': 12, 'scale': 2})]"


class Shape(NamedTuple):
    """What Avro makes of a type."""

    schema: Any
    outward: Step | None = None
    """From what ``msgspec.to_builtins`` makes of a value to what fastavro writes. None: it is the same."""
    inward: Step | None = None
    """From what fastavro reads to what ``msgspec.convert`` takes. None: it is the same."""
    is_any_of: bool = False
    """Whether it is one of several records, which ``inward`` finds by name."""


class _At(NamedTuple):
    """Where a type is."""

    path: str
    extra: Mapping[str, Any]
    """What ``msgspec.Meta(extra=...)`` says of it."""
    is_time: bool
    """Whether its integers are Timestamps, which msgspec does not know."""


class Shapes:
    """Finds the shapes of one type and its parts."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        """Why the type has no schema. It may still be read."""
        self._records: dict[Any, _Record] = {}
        self._open: set[Any] = set()
        """The classes around the place that is looked at."""
        self._names: dict[str, Any] = {}
        """By name in Avro: the class that has it."""

    def of_kind(self, kind: Any) -> Shape:
        """The shape of a whole type."""
        return self._of(inspect.type_info(kind), _At("it", {}, has_timestamp(kind, {})))

    def _of(self, info: inspect.Type, at: _At) -> Shape:
        if isinstance(info, inspect.Metadata):
            return self._of(info.type, at._replace(extra={**at.extra, **(info.extra or {})}))
        if type(info) in _PLAIN:
            return _TIMESTAMP if at.is_time and isinstance(info, inspect.IntType) else _PLAIN[type(info)]
        make = _MAKERS.get(type(info))
        if make is None:
            return self._without(at, f"the type {type(info).__name__.removesuffix('Type')} has no form in Avro", info)
        return make(self, info, at)

    def _without(self, at: _At, why: str, info: inspect.Type | None = None) -> Shape:
        """The shape of a type without a schema. Its values are read as fastavro has them.

        But Timestamps are not read at all: a number in their place may have any unit. ``info``: what may have some.
        """
        self.problems.append(f"{at.path}: {why}")
        has_times = at.is_time or (info is not None and holds_timestamps(info))
        return Shape("null", inward=_no_timestamp if has_times else None)

    def decimal(self, info: inspect.DecimalType, at: _At) -> Shape:
        if "precision" not in at.extra:
            return self._without(at, f"a Decimal needs the number of its digits: {_PRECISION}")
        digits = {name: at.extra[name] for name in ("precision", "scale") if name in at.extra}
        return Shape({"type": "bytes", "logicalType": "decimal", **digits})

    def moment(self, info: inspect.DateTimeType, at: _At) -> Shape:
        if info.tz is False:
            return Shape({"type": "long", "logicalType": "local-timestamp-micros"})
        return Shape({"type": "long", "logicalType": "timestamp-micros"}, _with_zone)

    def enum(self, info: inspect.EnumType, at: _At) -> Shape:
        values = [one.value for one in info.cls]
        if not all(isinstance(one, str) and _NAME.fullmatch(one) for one in values):
            return self._literal(values, at)
        name = info.cls.__name__
        if self._names.get(name) is info.cls:
            return Shape(name)
        return Shape({"type": "enum", "name": self._named(name, info.cls, at), "symbols": values})

    def literal(self, info: inspect.LiteralType, at: _At) -> Shape:
        return self._literal(info.values, at)

    def _literal(self, values: Any, at: _At) -> Shape:
        for kind, schema in ((str, "string"), (int, "long")):
            if all(isinstance(one, kind) for one in values):
                return Shape(schema)
        return self._without(at, "its values are neither texts alone nor integers alone")

    def array(self, info: inspect.CollectionType, at: _At) -> Shape:
        item = self._of(info.item_type, at._replace(path=f"{at.path}[]"))
        return Shape({"type": "array", "items": item.schema}, _each(item.outward), _each(item.inward))

    def map(self, info: inspect.DictType, at: _At) -> Shape:
        value = self._of(info.value_type, at._replace(path=f"{at.path}{{}}"))
        if not isinstance(info.key_type, inspect.StrType):
            return self._without(at, "the keys of a map are texts", info)
        return Shape({"type": "map", "values": value.schema}, _each_value(value.outward), _each_value(value.inward))

    def union(self, info: inspect.UnionType, at: _At) -> Shape:
        others = [one for one in info.types if not isinstance(one, inspect.NoneType)]
        null = ["null"] if len(others) < len(info.types) else []
        if len(others) == 1:
            shape = self._of(others[0], at)
            return Shape([*null, shape.schema], _unless_none(shape.outward), _unless_none(shape.inward))
        if all(type(one) in _SIMPLE for one in others):
            # An integer fits a double, too, and fastavro takes the first that fits.
            ordered = [self._of(one, at) for one in sorted(others, key=lambda one: _SIMPLE.index(type(one)))]
            schema = [*null, *(one.schema for one in ordered)]
            steps = (_moment_of_several, _microseconds_of_several) if _TIMESTAMP in ordered else ()
            return Shape(schema, *steps)
        if all(isinstance(one, inspect.StructType) and isinstance(one.tag, str) for one in others):
            records = {one.tag: self._of(one, at) for one in others if isinstance(one, inspect.StructType)}
            tag_field = others[0].tag_field  # type: ignore[attr-defined]
            schemas = [one.schema for one in records.values()]
            return Shape([*null, *schemas], *_by_tag(tag_field, records), is_any_of=True)
        why = "a union is of None and one type, of bool, int, float, str and bytes, or of Structs"
        return self._without(at, why, info)

    def record(self, info: inspect.StructType | inspect.DataclassType | inspect.TypedDictType, at: _At) -> Shape:
        if (known := self._records.get(info.cls)) is not None:
            if info.cls in self._open:
                self._without(at, "a type that contains itself could not be read again")
            return Shape(known.name, known.outward, known.inward)
        if getattr(info, "array_like", False):
            return self._without(at, "a Struct with array_like=True has no names of fields", info)
        tag = getattr(info, "tag", None)
        name = tag if isinstance(tag, str) else info.cls.__name__
        record = self._records[info.cls] = _Record(self._named(name, info.cls, at))
        record.tag = None if tag is None else (getattr(info, "tag_field", ""), tag)
        times = timestamps_of(info.cls)
        self._open.add(info.cls)
        fields = [self._field(record, one, at, is_time=one.name in times) for one in info.fields]
        self._open.remove(info.cls)
        return Shape({"type": "record", "name": record.name, "fields": fields}, record.outward, record.inward)

    def _field(self, record: _Record, field: inspect.Field, at: _At, *, is_time: bool) -> dict[str, Any]:
        """Add a field to a record. Returns its schema."""
        name = field.encode_name
        at = _At(f"{at.path}.{name}", {}, is_time)
        if not _NAME.fullmatch(name):
            self._without(at, "Avro has no such name: let msgspec.field(name=...) give it another one")
        shape = self._of(field.type, at)
        if not field.required and field.default is NODEFAULT and field.default_factory is NODEFAULT:
            self._without(at, "it may be missing, and a record of Avro has all of its fields: give it a default")
        aliases = _aliases(field.type)
        record.add(field, shape, aliases)
        made = {"name": name, "type": shape.schema, **({"aliases": aliases} if aliases else {})}
        default = _default(field)
        if default is None or (default is not NODEFAULT and not isinstance(shape.schema, list)):
            made["default"] = default
        elif default is not NODEFAULT and len(shape.schema) == 2 and "null" in shape.schema:
            # The default is one of the first type.
            made |= {"type": sorted(shape.schema, key=lambda one: one == "null"), "default": default}
        return made

    def _named(self, name: str, cls: Any, at: _At) -> str:
        if not _NAME.fullmatch(name):
            self._without(at, f"Avro has no such name: {name!r}")
        elif self._names.setdefault(name, cls) is not cls:
            self._without(at, f"another type has the name {name!r}, too")
        return name


class _Record:
    """The fields of a record that are not the same on both sides."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tag: tuple[str, Any] | None = None
        """The field that distinguishes the Structs of a union, with its value."""
        self._aliases: list[tuple[str, list[str]]] = []
        self._outward: list[tuple[str, Step]] = []
        self._inward: list[tuple[str, Step]] = []
        self._defaults: list[tuple[str, Callable[[], Any]]] = []

    def add(self, field: inspect.Field, shape: Shape, aliases: list[str]) -> None:
        name = field.encode_name
        if aliases:
            self._aliases.append((name, aliases))
        if shape.outward is not None:
            self._outward.append((name, shape.outward))
        if shape.inward is not None:
            self._inward.append((name, shape.inward))
        if field.default is not NODEFAULT:
            self._defaults.append((name, lambda: field.default))
        elif field.default_factory is not NODEFAULT:
            self._defaults.append((name, field.default_factory))

    def outward(self, value: dict[str, Any]) -> dict[str, Any]:
        for name, default in self._defaults:
            if name not in value:  # a Struct with omit_defaults=True
                value[name] = msgspec.to_builtins(default(), builtin_types=NATIVE)
        for name, step in self._outward:
            value[name] = step(value[name])
        return value

    def inward(self, value: Any) -> Any:
        if isinstance(value, tuple):  # fastavro names a record of a union that has several
            name, value = value
            if name.rpartition(".")[2] != self.name:
                raise ValueError(f"it is a {name}, and not a {self.name}")
        if not isinstance(value, dict):
            return value  # msgspec says what is wrong
        for name, aliases in self._aliases:
            former = next((one for one in aliases if one in value), None)
            if name not in value and former is not None:
                value[name] = value.pop(former)
        for name, step in self._inward:
            if name in value:
                value[name] = step(value[name])
        if self.tag is not None:
            value[self.tag[0]] = self.tag[1]
        return value


def _default(field: inspect.Field) -> Any:
    """The default in a schema. NODEFAULT: there is none, or it has no simple form in JSON."""
    if field.default_factory is not NODEFAULT:
        return _EMPTY.get(field.default_factory, NODEFAULT)  # any other one may return something else each time
    value = field.default.value if isinstance(field.default, Enum) else field.default
    if isinstance(value, bytes):
        return value.decode("latin-1")
    is_simple = value is None or isinstance(value, int | str)
    return value if is_simple or (isinstance(value, float) and isfinite(value)) else NODEFAULT


def _aliases(info: inspect.Type) -> list[str]:
    """Former names of a field. They may be said of its type, or of one of the types in its union."""
    if isinstance(info, inspect.Metadata):
        return [*(info.extra or {}).get("aliases", ()), *_aliases(info.type)]
    return [name for one in info.types for name in _aliases(one)] if isinstance(info, inspect.UnionType) else []


def _no_timestamp(value: Any) -> None:
    if value is not None:
        raise ValueError("a type without a form in Avro has Timestamps, and nothing says their unit: read them as int")


def _moment_of_several(value: Any) -> Any:
    return _moment(value) if type(value) is int else value


def _microseconds_of_several(value: Any) -> Any:
    is_other = value is None or isinstance(value, bool | float | str | bytes)
    return value if is_other else _microseconds(value)


def _with_zone(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError(f"{value} has no time zone: fields of the type datetime need one")
    return value


def _without_zone(value: time) -> time:
    if value.tzinfo is not None:
        raise ValueError(f"{value} has a time zone, and Avro has none for the time of a day")
    return value


def _moment(value: int) -> datetime:
    return _EPOCH + value * _MICROSECOND  # fastavro converts it to the unit of the schema


def _microseconds(value: Any) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(f"{value!r} is no moment in its schema, and so no Timestamp: read it as int or datetime")
    return (value - _EPOCH) // _MICROSECOND


def _text(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    return value.decode() if isinstance(value, bytes) else value


def _bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value  # msgspec takes a text for base64


def _uuid(value: Any) -> Any:
    return UUID(bytes=value) if isinstance(value, bytes) else value


def _unless_none(step: Step | None) -> Step | None:
    return None if step is None else lambda value: None if value is None else step(value)


def _each(step: Step | None) -> Step | None:
    return None if step is None else lambda values: [step(one) for one in values]


def _each_value(step: Step | None) -> Step | None:
    return None if step is None else lambda values: {name: step(one) for name, one in values.items()}


def _by_tag(tag_field: str, records: Mapping[Any, Shape]) -> tuple[Step, Step]:
    """The steps of a union of Structs. fastavro has a pair of a record's name and its fields."""

    def outward(value: Any) -> Any:
        if value is None:
            return None
        tag = value[tag_field]
        step = records[tag].outward
        return tag, value if step is None else step(value)

    def inward(value: Any) -> Any:
        if not isinstance(value, tuple):
            return value  # msgspec says that the tag is missing
        tag = value[0].rpartition(".")[2]
        step = records[tag].inward if tag in records else None
        return value[1] | {tag_field: tag} if step is None else step(value)

    return outward, inward


_TIMESTAMP: Final = Shape({"type": "long", "logicalType": "timestamp-micros"}, _moment, _microseconds)
_PLAIN: Final[dict[type, Shape]] = {
    inspect.NoneType: Shape("null"),
    inspect.BoolType: Shape("boolean"),
    inspect.IntType: Shape("long"),
    inspect.FloatType: Shape("double"),
    inspect.StrType: Shape("string", None, _text),
    inspect.BytesType: Shape("bytes", None, _bytes),
    inspect.DateType: Shape({"type": "int", "logicalType": "date"}),
    inspect.TimeType: Shape({"type": "long", "logicalType": "time-micros"}, _without_zone),
    inspect.UUIDType: Shape({"type": "string", "logicalType": "uuid"}, None, _uuid),
}
_SIMPLE: Final = (inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.StrType, inspect.BytesType)
_MAKERS: Final[dict[type, Callable[[Shapes, Any, _At], Shape]]] = {
    inspect.DecimalType: Shapes.decimal,
    inspect.DateTimeType: Shapes.moment,
    inspect.EnumType: Shapes.enum,
    inspect.LiteralType: Shapes.literal,
    inspect.ListType: Shapes.array,
    inspect.SetType: Shapes.array,
    inspect.FrozenSetType: Shapes.array,
    inspect.DictType: Shapes.map,
    inspect.UnionType: Shapes.union,
    inspect.StructType: Shapes.record,
    inspect.DataclassType: Shapes.record,
    inspect.TypedDictType: Shapes.record,
}
