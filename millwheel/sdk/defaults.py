"""The default state of a key without state (section 4.4), and whether that default is constant."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import typing
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any, Final, cast

import msgspec

from millwheel.sdk.typeinfo import is_protobuf, members, supertype

__all__ = ["default_of", "makes_the_same"]


def default_of(state_type: Any) -> Callable[[], Any]:
    """A function that returns a type's default state: None if the type allows it, else the type without arguments."""
    if any(member is type(None) or member is Any for member in members(state_type)):
        return _none
    plain = supertype(state_type)
    made: Callable[[], Any] = getattr(plain, "__origin__", plain)
    return made


def _none() -> None:
    return None


_PLAIN: Final = frozenset(
    {
        *(bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple),
        *(Counter, OrderedDict, decimal.Decimal, deque, dt.timedelta),
        _none,
    }
)


def makes_the_same(make: Any) -> bool:
    """Whether ``make``, called without arguments, returns equal values at any time and in any process.

    A user's class may generate an id or read a clock. The result is True only for types that cannot: built-in types,
    and classes of plain fields whose defaults are constants or come from such types.
    """
    if not isinstance(make, type):
        return make is _none or typing.is_typeddict(make)
    if make in _PLAIN or is_protobuf(make) or typing.is_typeddict(make):
        return True
    if getattr(make, "__post_init__", None) is not None:
        return False
    if issubclass(make, msgspec.Struct):
        return all(_is_constant(one, msgspec.NODEFAULT) for one in msgspec.structs.fields(make))
    if "__dataclass_params__" in make.__dict__:
        generated = make.__dict__["__dataclass_params__"].init and make.__new__ is object.__new__
        return generated and all(
            _is_constant(one, dataclasses.MISSING) for one in dataclasses.fields(cast("Any", make))
        )
    return make.__bases__[:1] == (tuple,) and hasattr(make, "_field_defaults")


def _is_constant(field: Any, none: Any) -> bool:
    """Whether a field's default is constant. A default that is not hashable is mutable, and all keys would share it."""
    if field.default_factory is not none:
        return makes_the_same(field.default_factory)
    return field.default is none or isinstance(field.default, Hashable)
