"""Which column takes which type of a field, and how a value becomes what the driver takes. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import inspect

__all__ = ["Convert", "CqlType", "UnfitError", "converter", "parsed"]

Convert = Callable[[Any], Any]

_TEXTS: Final = ("text", "varchar", "ascii")
_SCALARS: Final = MappingProxyType(
    {
        **dict.fromkeys((*_TEXTS, "inet"), (inspect.StrType,)),
        **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "varint"), (inspect.IntType,)),
        **dict.fromkeys(("float", "double"), (inspect.FloatType, inspect.IntType)),
        **dict.fromkeys(("uuid", "timeuuid"), (inspect.UUIDType,)),
        "decimal": (inspect.DecimalType, inspect.IntType),
        "boolean": (inspect.BoolType,),
        "blob": (inspect.BytesType, inspect.ByteArrayType),
        "timestamp": (inspect.DateTimeType,),
        "date": (inspect.DateType,),
        "time": (inspect.TimeType,),
    }
)
"""By the type of a column: the types of fields whose values the driver takes as they are."""
_SEQUENCES: Final = (inspect.ListType, inspect.VarTupleType)
_SETS: Final = (inspect.SetType, inspect.FrozenSetType)
_NESTED: Final = (
    *_SEQUENCES, *_SETS, inspect.TupleType, inspect.DictType, inspect.TypedDictType, inspect.NamedTupleType,
    inspect.DataclassType, inspect.StructType, inspect.AnyType,
)  # fmt: skip
"""What a column of text has as JSON."""
_COLLECTIONS: Final = ("list", "set", "map", "tuple", "vector")


@dataclass(frozen=True, slots=True)
class CqlType:
    """The type of a column, such as ``frozen<map<text, int>>``."""

    name: str
    parts: tuple[CqlType, ...] = ()
    frozen: bool = False

    @property
    def is_collection(self) -> bool:
        """Whether it has several values."""
        return self.name in _COLLECTIONS


class UnfitError(Exception):
    """A column does not take the type of a field. The text says why."""


def parsed(text: str) -> CqlType:
    """The type that ``system_schema.columns`` has as a text.

    >>> parsed("frozen<map<text, int>>")
    CqlType(name='map', parts=(CqlType(name='text', parts=(), frozen=False), CqlType(name='int', parts=(),\
 frozen=False)), frozen=True)
    """
    name, opened, rest = text.strip().partition("<")
    if not opened:
        return CqlType(name)
    parts, depth = [""], 0
    for letter in rest.rstrip().removesuffix(">"):
        depth += (letter == "<") - (letter == ">")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    types = tuple(map(parsed, parts))
    return CqlType(types[0].name, types[0].parts, frozen=True) if name == "frozen" else CqlType(name, types)


def converter(field: inspect.Type, column: CqlType, *, is_timestamp: bool = False) -> Convert | None:
    """What makes a value for the driver of a field's value, which is not None. None: the driver takes it as it is.

    ``is_timestamp``: the field is a ``Timestamp`` of MillWheel, which msgspec does not tell from an int.

    Raises:
        UnfitError: The column does not take the field.
    """
    if column.name == "list" and not column.frozen:
        raise UnfitError(f"is a list, to which a repeated write would append: make it frozen<{_shown(column)}>")
    parts = _parts_of(field)
    if not parts:
        raise UnfitError("cannot be filled by a field that is always None")
    found = [_of_one(part, column, is_timestamp=is_timestamp) for part in parts]
    if len(found) != 1 and any(one is not None for one in found):
        raise UnfitError(f"is {_shown(column)}, and the field may be of {len(parts)} types")
    return found[0]


def _parts_of(field: inspect.Type) -> list[inspect.Type]:
    """The types that a field may have beside None."""
    if isinstance(field, inspect.Metadata):
        return _parts_of(field.type)
    if isinstance(field, inspect.UnionType):
        return [part for one in field.types for part in _parts_of(one)]
    return [] if isinstance(field, inspect.NoneType) else [field]


def _of_one(field: inspect.Type, column: CqlType, *, is_timestamp: bool) -> Convert | None:
    if column.is_collection:
        return _collection(field, column)
    if column.name not in _SCALARS:
        raise UnfitError(f"is {_shown(column)}, a type that the sink does not write")
    if column.name in _TEXTS and isinstance(field, _NESTED):
        return _json
    if isinstance(field, inspect.EnumType | inspect.LiteralType):
        return _of_values(field, column)
    if column.name == "timestamp" and is_timestamp:
        return _milliseconds
    fits = column.name in ("bigint", "varint") if is_timestamp else isinstance(field, _SCALARS[column.name])
    if not fits:
        raise UnfitError(f"is {_shown(column)}, and the field is {_name_of(field, is_timestamp)}")
    return None


def _of_values(field: inspect.EnumType | inspect.LiteralType, column: CqlType) -> Convert | None:
    """For a field that has one of some values: texts, or whole numbers."""
    values = field.values if isinstance(field, inspect.LiteralType) else tuple(one.value for one in field.cls)
    taken = _SCALARS[column.name]
    wanted = str if inspect.StrType in taken else int
    if taken not in ((inspect.StrType,), (inspect.IntType,)) or not all(type(one) is wanted for one in values):
        raise UnfitError(f"is {_shown(column)}, and the field is one of {', '.join(map(repr, values))}"[:200])
    return None if isinstance(field, inspect.LiteralType) else _value


def _collection(field: inspect.Type, column: CqlType) -> Convert | None:
    items: list[inspect.Type]
    if column.name == "map" and isinstance(field, inspect.DictType):
        items = [field.key_type, field.value_type]
    elif column.name == "tuple" and isinstance(field, inspect.TupleType) and len(field.item_types) == len(column.parts):
        items = list(field.item_types)
    elif (column.name == "set" and isinstance(field, _SETS)) or (
        column.name in ("list", "vector") and isinstance(field, _SEQUENCES)
    ):
        items = [field.item_type]
    else:
        raise UnfitError(f"is {_shown(column)}, and the field is {_name_of(field, False)}")
    # What is in a collection is frozen, whether the type says so or not.
    kinds = [CqlType(part.name, part.parts, frozen=True) for part in column.parts]
    found = [converter(item, kind) for item, kind in zip(items, kinds, strict=False)]
    if any(one is not None for one in found):
        raise UnfitError(f"is {_shown(column)}, whose parts the sink does not convert: give the field plain values")
    return None


def _shown(column: CqlType) -> str:
    return column.name + (f"<{', '.join(map(_shown, column.parts))}>" if column.parts else "")


def _name_of(field: inspect.Type, is_timestamp: bool) -> str:
    return "a Timestamp" if is_timestamp else f"of {type(field).__name__.removesuffix('Type').lower()}"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _milliseconds(value: int) -> int:
    """A Timestamp as a column of timestamps has it."""
    return value // 1_000


def _value(value: Any) -> Any:
    return value.value
