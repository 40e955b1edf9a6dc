"""Types that msgspec must not be given: a decoder of such a type ends the process with a segmentation fault.

msgspec (all of 0.20 to 0.22) keeps the bounds of a union's members and the items of its fixed-length tuple in one
array. It mistakes one for the other when it frees the decoder. Its own description of a type makes a decoder, too. So
this module reads the annotations.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final, Union

import msgspec

from millwheel.sdk.errors import UnsupportedTypeError

__all__ = ["refuse_unsafe"]

_BOUNDS: Final = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length")


def refuse_unsafe(annotation: Any) -> None:
    """Raise UnsupportedTypeError if a part of a type is a union that has a fixed-length tuple and a bound."""
    path = _find(annotation, "$", set())
    if path is not None:
        raise UnsupportedTypeError(
            f"the union at `{path}` has a tuple of fixed length and a type with a bound (msgspec.Meta), which crashes "
            "msgspec; leave out the bound, or use a msgspec.Struct instead of the tuple"
        )


def _find(annotation: Any, path: str, seen: set[Hashable]) -> str | None:
    """The path of such a union, such as ``$.field[]``."""
    members = list(_members(annotation))
    tuples = any(_is_fixed_tuple(member) for member, _ in members)
    if tuples and len(members) > 1 and any(bounded for _, bounded in members):
        return path
    parts = ((path + suffix, part) for member, _ in members for suffix, part in _parts(member, seen))
    return next((found for where, part in parts if (found := _find(part, where, seen)) is not None), None)


def _members(annotation: Any, bounded: bool = False) -> Iterator[tuple[Any, bool]]:
    """The members of a union, each with whether it has a bound. Any other type alone."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        metas = (one for one in annotation.__metadata__ if isinstance(one, msgspec.Meta))
        bounded = bounded or any(getattr(meta, bound) is not None for meta in metas for bound in _BOUNDS)
        yield from _members(annotation.__origin__, bounded)
    elif isinstance(annotation, typing.NewType):
        yield from _members(annotation.__supertype__, bounded)
    elif type(annotation).__name__ == "TypeAliasType":
        yield from _members(annotation.__value__, bounded)
    elif origin in (Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from _members(member, bounded)
    else:
        yield annotation, bounded


def _is_fixed_tuple(plain: Any) -> bool:
    items = typing.get_args(plain)
    return typing.get_origin(plain) is tuple and bool(items) and items[-1] is not Ellipsis


def _parts(plain: Any, seen: set[Hashable]) -> list[tuple[str, Any]]:
    """The types of the items and of the fields, with what they add to the path. Each type has its parts once."""
    key = plain if isinstance(plain, Hashable) else repr(plain)
    origin = typing.get_origin(plain) or plain
    if key in seen or origin is typing.Literal:
        return []
    seen.add(key)
    arguments = typing.get_args(plain)
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(arguments) == 2:
        return [(" key", arguments[0]), ("[]", arguments[1])]
    items = [(f"[{index}]" if _is_fixed_tuple(plain) else "[]", item) for index, item in enumerate(arguments)]
    return [(f".{name}", part) for name, part in _fields(origin, arguments)] + items


def _fields(origin: Any, arguments: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """The annotated fields of a user's class. ``arguments``: the class's type arguments."""
    if not isinstance(origin, type) or "__annotations__" not in dir(origin):
        return
    try:
        hints = typing.get_type_hints(origin, include_extras=True)
    except Exception:  # a name cannot be resolved: msgspec refuses the class
        return
    filled = dict(zip(getattr(origin, "__parameters__", ()), arguments, strict=False))
    for name, hint in hints.items():
        if hint in filled:
            yield name, filled[hint]
        elif variables := getattr(hint, "__parameters__", ()):
            yield name, hint[tuple(filled.get(variable, variable) for variable in variables)]
        else:
            yield name, hint
