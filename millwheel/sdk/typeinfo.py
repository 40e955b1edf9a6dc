"""Questions about the types that users state: their names, their fields, and whether one accepts another.

Only this module and ``unsafe_types`` read Python's annotations.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import Signature, signature
from typing import Any, Final, Generic, TypeVar, Union

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from msgspec import inspect

from millwheel.sdk.known_types import known
from millwheel.sdk.unsafe_types import refuse_unsafe

__all__ = [
    "Field",
    "accepts",
    "annotated_fields",
    "cached_by_type",
    "can_be_read_as",
    "describe_type",
    "field_of",
    "first_type",
    "generic_arguments",
    "is_key_type",
    "is_protobuf",
    "members",
    "normalise",
    "returned_type",
    "runtime_classes",
    "supertype",
    "type_name",
]

R = TypeVar("R")

_MAX_CACHED_TYPES: Final = 256
"""The number of types with a cached result. A server with more types computes the other results again."""


def cached_by_type(compute: Callable[[Any], R]) -> Callable[[Any], R]:
    """Cache the results of a function of a type, because each interval that opens needs those of its types.

    Equal types share one result, so callers must not change it.
    """
    cached = functools.lru_cache(_MAX_CACHED_TYPES)(compute)

    @functools.wraps(compute)
    def result(annotation: Any) -> R:
        try:
            return cached(annotation)
        except TypeError:
            # The type is not hashable, such as one with a list as an argument. Or ``compute`` raises it again.
            return compute(annotation)

    return result


@cached_by_type
def describe_type(annotation: Any) -> inspect.Type:
    """msgspec's description of a type and its parts. Callers must not change it.

    Raises:
        UnsupportedTypeError: The type crashes msgspec.
        TypeError: msgspec does not support the type. It has other errors, too.
    """
    refuse_unsafe(annotation)
    return inspect.type_info(known(annotation))


def normalise(annotation: Any) -> Any:
    """``annotation`` without aliases and Annotated. None becomes NoneType, and object becomes Any."""
    while True:
        if annotation is None:
            return type(None)
        if annotation is object:
            return Any
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = annotation.__origin__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation


def supertype(annotation: Any) -> Any:
    """The supertype of a NewType; any other type unchanged."""
    annotation = normalise(annotation)
    while isinstance(annotation, typing.NewType):
        annotation = normalise(annotation.__supertype__)
    return annotation


def members(annotation: Any) -> tuple[Any, ...]:
    """The members of a Union, flattened. For any other type, the type alone."""
    annotation = normalise(annotation)
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return tuple(part for member in typing.get_args(annotation) for part in members(member))
    return (annotation,)


def type_name(annotation: Any) -> str:
    """The type as a user would write it: ``dict[str, int]``, ``Query | None``."""
    parts = members(annotation)
    if len(parts) > 1:
        return " | ".join(type_name(part) for part in parts)
    plain = parts[0]
    if plain is type(None):
        return "None"
    if plain is Ellipsis:
        return "..."
    origin, arguments = typing.get_origin(plain), typing.get_args(plain)
    if origin is typing.Literal:
        return f"Literal[{', '.join(repr(argument) for argument in arguments)}]"
    if origin is not None and arguments:
        return f"{type_name(origin)}[{', '.join(type_name(argument) for argument in arguments)}]"
    return getattr(plain, "__qualname__", None) or getattr(plain, "__name__", None) or str(plain)


def returned_type(function: Any) -> Any:
    """The annotated return type of a callable, or the class itself for a class. None if nothing states it."""
    if isinstance(function, type):
        return function
    try:
        returned = signature(function, eval_str=True).return_annotation
    except (NameError, TypeError, ValueError):
        return None
    if returned is typing.Self:  # of a class method
        owner = getattr(function, "__self__", None)
        return owner if isinstance(owner, type) else None
    return None if returned is Signature.empty else returned


def first_type(function: Any) -> Any:
    """The annotated type of a callable's first parameter. None if nothing states it."""
    try:
        parameters = signature(function, eval_str=True).parameters.values()
    except (NameError, TypeError, ValueError):
        return None
    first = next(iter(parameters), None)
    return None if first is None or first.annotation is Signature.empty else first.annotation


def is_protobuf(annotation: Any) -> bool:
    """Whether the type is a protobuf message class."""
    return isinstance(annotation, type) and issubclass(annotation, Message)


def runtime_classes(annotation: Any) -> tuple[type, ...] | None:
    """The classes that a value of this type is an instance of; None if isinstance cannot decide."""
    classes: list[type] = []
    for member in members(annotation):
        plain = supertype(member)
        found = typing.get_origin(plain) or plain
        if typing.is_typeddict(found):
            found = dict
        if not isinstance(found, type):
            return None
        classes.append(found)
        if found is float:
            classes.append(int)
    return tuple(classes)


def accepts(wanted: Any, given: Any) -> bool:
    """Whether every value of type ``given`` is also of type ``wanted``, as far as the annotations show."""
    offers = members(wanted)
    return all(any(_accepts_one(offer, part) for offer in offers) for part in members(given))


def _accepts_one(wanted: Any, given: Any) -> bool:
    if wanted is Any or wanted == given:
        return True
    if isinstance(given, typing.NewType):
        return _accepts_one(wanted, normalise(given.__supertype__))
    given_class, wanted_class = typing.get_origin(given) or given, typing.get_origin(wanted) or wanted
    if not (isinstance(given_class, type) and isinstance(wanted_class, type)):
        return False
    if typing.is_typeddict(given_class) or typing.is_typeddict(wanted_class):
        return given_class is wanted_class or (wanted is dict and typing.is_typeddict(given_class))
    if given_class is bool and wanted_class is int:
        return False
    # If both have arguments, the comparison above has decided: list[int] is no list[str].
    return issubclass(given_class, wanted_class) and not (typing.get_args(wanted) and typing.get_args(given))


def can_be_read_as(wanted: Any, given: Any) -> bool:
    """Whether a value of type ``given`` may be encoded and read again as one of type ``wanted``.

    False only if the types show that none may. None says nothing about the other members of a union.
    """
    values = [part for part in members(given) if part is not type(None)] or [type(None)]
    return any(_may_be_read(supertype(offer), supertype(part)) for offer in members(wanted) for part in values)


def _may_be_read(wanted: Any, given: Any) -> bool:
    kinds = _encoded_kind(wanted), _encoded_kind(given)
    if None in kinds or kinds == ("float", "int"):
        return True
    items = typing.get_args(wanted), typing.get_args(given)
    if kinds == ("list", "list") and all(len(one) == 1 for one in items):
        return can_be_read_as(items[0][0], items[1][0])
    return kinds[0] == kinds[1]


_ENCODED_KINDS: Final[Mapping[type, str]] = {
    bool: "bool",  # before int, of which it is a subclass
    int: "int",
    float: "float",
    **dict.fromkeys((str, bytes, datetime.date, datetime.time, datetime.timedelta), "text"),
    **dict.fromkeys((list, set, frozenset), "list"),
    dict: "object",
    type(None): "nothing",
}


def _encoded_kind(plain: Any) -> str | None:
    """What a value of this type is in its encoded form. None if the type does not show it."""
    found = typing.get_origin(plain) or plain
    if not isinstance(found, type) or issubclass(found, enum.Enum):
        return None
    if issubclass(found, msgspec.Struct):
        return None if found.__struct_config__.array_like else "object"
    if dataclasses.is_dataclass(found):
        return "object"
    return next((kind for cls, kind in _ENCODED_KINDS.items() if issubclass(found, cls)), None)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a value: how to read it, its type, and its name in the encoded value ("" if it has none)."""

    item: bool | None
    """Read it by value[name] (True) or value.name (False). None if that depends on the value."""
    type: Any
    wire_name: str


def field_of(annotation: Any, name: str) -> Field | str | None:
    """The field ``name`` of a type.

    Returns:
        The field. None if the type does not determine it. A text with the names of the type's fields if it has no such
        field.
    """
    found: list[Field] = []
    for member in members(annotation):
        if member is type(None):
            continue
        field = _field_of_one(supertype(member), name)
        if not isinstance(field, Field):
            return field
        found.append(field)
    if not found or any((one.item, one.wire_name) != (found[0].item, found[0].wire_name) for one in found):
        return None
    merged = found[0].type if len(found) == 1 else Union[tuple(one.type for one in found)]  # noqa: UP007
    return Field(found[0].item, merged, found[0].wire_name)


def _field_of_one(plain: Any, name: str) -> Field | str | None:
    origin = typing.get_origin(plain) or plain
    if not isinstance(origin, type):
        return None
    if typing.is_typeddict(origin):
        return _pick({key: Field(True, hint, key) for key, hint in _hints(origin).items()}, name)
    if issubclass(origin, Mapping):
        arguments = typing.get_args(plain)
        return Field(True, arguments[1] if len(arguments) == 2 else Any, name)
    fields = _attribute_fields(origin, plain)
    if fields is None:
        return None
    picked = _pick(fields, name)
    if isinstance(picked, str) and hasattr(origin, name):
        # A property or a class attribute: user code can read it, but the encoded value does not contain it.
        return Field(False, Any, "")
    return picked


def _attribute_fields(origin: type, plain: Any) -> dict[str, Field] | None:
    if issubclass(origin, msgspec.Struct):
        return _struct_fields(plain)
    if dataclasses.is_dataclass(origin):
        hints = _hints(origin)
        return {one.name: Field(False, hints.get(one.name, Any), one.name) for one in dataclasses.fields(origin)}
    if issubclass(origin, Message):
        return {one.name: Field(False, _protobuf_type(one), one.name) for one in origin.DESCRIPTOR.fields}
    if issubclass(origin, tuple) and hasattr(origin, "_fields"):
        hints = _hints(origin)
        return {one: Field(False, hints.get(one, Any), "") for one in origin._fields}
    return {} if origin in (str, int, float, bool, bytes, list, tuple, set, frozenset) else None


@cached_by_type
def _struct_fields(plain: Any) -> dict[str, Field]:
    by_place = (typing.get_origin(plain) or plain).__struct_config__.array_like
    return {
        field.name: Field(False, field.type, "" if by_place else field.encode_name)
        for field in msgspec.structs.fields(plain)
    }


def _pick(fields: dict[str, Field], name: str) -> Field | str:
    return fields[name] if name in fields else ", ".join(fields)


def annotated_fields(cls: type, names: Mapping[str, Any]) -> dict[str, Any]:
    """The types of the annotated fields of a class and its bases, without class variables.

    Args:
        cls: The class.
        names: Names that the annotations may use besides those of the class's module.

    Raises:
        Exception: An annotation names something that is not known.
    """
    found = typing.get_type_hints(cls, localns=dict(names), include_extras=True)
    return {name: hint for name, hint in found.items() if (typing.get_origin(hint) or hint) is not typing.ClassVar}


def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except Exception:  # a name cannot be resolved, so the type does not determine its fields
        return dict.fromkeys(getattr(cls, "__annotations__", {}), Any)


def _protobuf_type(field: Any) -> Any:
    if field.is_repeated:
        return list[Any]
    if field.message_type is not None:
        return GetMessageClass(field.message_type)
    kinds = {
        FieldDescriptor.CPPTYPE_STRING: bytes if field.type == FieldDescriptor.TYPE_BYTES else str,
        FieldDescriptor.CPPTYPE_BOOL: bool,
        FieldDescriptor.CPPTYPE_DOUBLE: float,
        FieldDescriptor.CPPTYPE_FLOAT: float,
    }
    return kinds.get(field.cpp_type, int)


def is_key_type(annotation: Any) -> bool:
    """Whether values of this type, except None, can be a part of a key: str, int, or a type that is not determined."""
    return all(member is type(None) or _is_key_member(supertype(member)) for member in members(annotation))


def _is_key_member(plain: Any) -> bool:
    if typing.get_origin(plain) is typing.Literal:
        return all(isinstance(value, str | int) and not isinstance(value, bool) for value in typing.get_args(plain))
    if plain is Any or not isinstance(plain, type):
        return plain is Any or isinstance(plain, TypeVar)
    if issubclass(plain, enum.Enum):
        return issubclass(plain, str | int)
    return issubclass(plain, str | int) and plain is not bool


def generic_arguments(owner: Any, base: type) -> tuple[Any, ...] | None:
    """The type arguments that ``owner`` (a class, or a class with arguments) gives to the generic class ``base``.

    Intermediate generic classes are resolved. None if a class in between uses ``base`` without arguments. A TypeVar
    without an argument stays in the result.
    """
    origin = typing.get_origin(owner) or owner
    arguments = typing.get_args(owner)
    if origin is base:
        return arguments or None
    parameters = getattr(origin, "__parameters__", ())
    filled = dict(zip(parameters, arguments, strict=False))
    for parent in _original_bases(origin):
        parent_origin = typing.get_origin(parent) or parent
        if parent_origin is Generic or not (isinstance(parent_origin, type) and issubclass(parent_origin, base)):
            continue
        found = generic_arguments(_substitute(parent, filled, origin), base)
        if found is not None:
            return found
    return None


def _original_bases(cls: type) -> Iterator[Any]:
    yield from cls.__dict__.get("__orig_bases__", cls.__bases__)


def _substitute(alias: Any, filled: dict[Any, Any], owner: type) -> Any:
    """``alias`` with type variables replaced. Its forward references are resolved in the module of ``owner``."""
    arguments = typing.get_args(alias)
    if not arguments:
        return alias
    resolved = tuple(_resolve(argument, owner) for argument in arguments)
    alias = typing.get_origin(alias)[resolved if len(resolved) > 1 else resolved[0]]
    variables = getattr(alias, "__parameters__", ())
    return alias[tuple(filled.get(variable, variable) for variable in variables)] if variables else alias


def _resolve(argument: Any, owner: type) -> Any:
    if not isinstance(argument, typing.ForwardRef | str):
        return argument
    text = argument if isinstance(argument, str) else argument.__forward_arg__
    module = sys.modules.get(owner.__module__)
    holder = types.SimpleNamespace(__annotations__={"it": text})
    return typing.get_type_hints(holder, globalns=vars(module) if module else {})["it"]
