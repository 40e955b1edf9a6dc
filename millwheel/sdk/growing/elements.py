"""The elements of a collection as bytes. Each is checked when it is added (docs/decisions/0022)."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from dataclasses import dataclass
from types import MemberDescriptorType
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import inspect

from millwheel.model.limits import MAX_KEY_BYTES, MAX_STATE_BYTES
from millwheel.sdk.codecs import ValueCodec, ValueFormat, codec_for
from millwheel.sdk.errors import TooLargeError, UnsupportedTypeError
from millwheel.sdk.typeinfo import describe_type, type_name

__all__ = ["Elements", "element_codec", "key_codec"]

T = TypeVar("T")

_KEY_SCALARS: Final = (
    inspect.StrType,
    inspect.IntType,
    inspect.BoolType,
    inspect.BytesType,
    inspect.NoneType,
    inspect.UUIDType,
    inspect.DateType,
    inspect.EnumType,
    inspect.LiteralType,
)
_KEY_CLASSES: Final = (inspect.StructType, inspect.DataclassType, inspect.NamedTupleType)


@dataclass(frozen=True, slots=True)
class Elements(Generic[T]):
    """Encodes and decodes the elements or the keys of one collection. ``encode`` raises ValueEncodeError."""

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    type: Any
    is_msgpack: bool


def element_codec(element: Any, where: str) -> Elements[Any]:
    """The codec of the elements of a collection. ``where`` names the field in errors."""
    return _limited(_codec(element, where, where), element, where, MAX_STATE_BYTES)


def key_codec(key: Any, where: str) -> Elements[Any]:
    """The codec of a map's keys or a set's elements. Keys are equal if their encodings are.

    Raises:
        UnsupportedTypeError: Equal values of the type may have different encodings, such as 1 and 1.0.
    """
    codec = _codec(key, where, f"{where}, key")
    if codec.format is not ValueFormat.RAW:
        refused = "" if codec.format is ValueFormat.MSGPACK else type_name(key)
        refused = refused or _no_key(describe_type(key), ())
        if refused:
            raise UnsupportedTypeError(
                f"{where}: {type_name(key)} cannot be a key, because equal values of {refused} may be stored "
                "differently: use str, int, bool, bytes, UUID, date, enums, and tuples or structs of these"
            )
    return _limited(codec, key, f"{where}, key", MAX_KEY_BYTES)


def _codec(element: Any, where: str, part: str) -> ValueCodec:
    try:
        return codec_for(element, part)
    except UnsupportedTypeError as error:
        raise UnsupportedTypeError(f"{where}: {error}") from error


def _limited(codec: ValueCodec, element: Any, where: str, limit: int) -> Elements[Any]:
    verify = codec.verify

    def encode(value: Any) -> bytes:
        encoded = verify(value)
        if encoded.__class__ is not bytes:
            encoded = bytes(memoryview(encoded))
        if len(encoded) > limit:
            raise TooLargeError(where, len(encoded), limit)
        return encoded

    return Elements(encode, codec.decode, element, codec.format is ValueFormat.MSGPACK)


def _no_key(info: inspect.Type, above: tuple[Any, ...]) -> str:
    """The first part of a type whose equal values may have different encodings; empty if there is none."""
    parts: list[inspect.Type] = []
    if isinstance(info, inspect.TupleType):
        parts = list(info.item_types)
    elif isinstance(info, inspect.VarTupleType):
        parts = [info.item_type]
    elif isinstance(info, inspect.UnionType):
        parts = list(info.types)
        if any(isinstance(one, inspect.BoolType) for one in parts) and any(map(_is_number, parts)):
            return "int | bool"
    elif isinstance(info, _KEY_CLASSES):
        if info.cls in above:
            return info.cls.__name__
        if reason := _no_key_class(typing.get_origin(info.cls) or info.cls):
            return reason
        above = (*above, info.cls)
        parts = [field.type for field in info.fields]
    elif isinstance(info, inspect.CustomType):
        return type_name(info.cls)
    elif not isinstance(info, _KEY_SCALARS):
        return type(info).__name__.removesuffix("Type").lower()
    return next((refused for part in parts if (refused := _no_key(part, above))), "")


def _is_number(info: inspect.Type) -> bool:
    """Whether values of a type may equal a bool."""
    if isinstance(info, inspect.EnumType):
        return issubclass(info.cls, int)
    if isinstance(info, inspect.LiteralType):
        return any(isinstance(value, int) for value in info.values)
    return isinstance(info, inspect.IntType)


def _no_key_class(cls: type) -> str:
    """The class, and why equal objects of it may have different encodings; empty if they have the same.

    msgspec leaves out a default that is the very object of the class (``omit_defaults``). From a dataclass it leaves
    out what is no attribute of the object: a default that is one of the class, and was not read.
    """
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            if not field.compare:
                return f"{cls.__name__}, whose field {field.name!r} is not compared,"
            default = getattr(cls, field.name, dataclasses.MISSING)
            if default is not dataclasses.MISSING and not isinstance(default, MemberDescriptorType):
                return f"{cls.__name__}, whose field {field.name!r} has a default and no slot (slots=True),"
        own = getattr(getattr(cls.__eq__, "__code__", None), "co_filename", "<string>") != "<string>"
    elif issubclass(cls, msgspec.Struct):
        if cls.__struct_config__.omit_defaults:
            return f"{cls.__name__}, which has omit_defaults,"
        own = cls.__eq__ is not msgspec.Struct.__eq__
    else:
        own = cls.__eq__ is not tuple.__eq__
    return f"{cls.__name__}, which defines __eq__," if own else ""
