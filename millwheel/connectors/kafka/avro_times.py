"""Which parts of a type are Timestamps. To msgspec they are integers, so this reads the annotations. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from msgspec import inspect

from millwheel.model.time import Timestamp

__all__ = ["has_timestamp", "holds_timestamps", "timestamps_of"]

Given = Mapping[Any, bool]
"""By type variable: whether it stands for a type with Timestamps."""


def has_timestamp(hint: Any, given: Given, within: tuple[Any, ...] = ()) -> bool:
    """Whether an annotation has a Timestamp in it. Fields of classes do not count.

    Args:
        hint: The annotation. A NewType and an alias count as what they stand for.
        given: What type variables stand for.
        within: The annotations that it is a part of. An alias may be a part of itself.
    """
    if hint is Timestamp or (isinstance(hint, TypeVar) and given.get(hint, False)):
        return True
    if any(hint is one for one in within):
        return False
    stands_for = getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None)
    parts = get_args(hint) if stands_for is None else (stands_for, *get_args(hint))
    return any(has_timestamp(one, given, (*within, hint)) for one in parts)


def timestamps_of(cls: Any) -> set[str]:
    """The fields of a class that have Timestamps. A generic class may have its arguments."""
    return {name for name, is_time in _fields(cls, {}).items() if is_time}


def _fields(cls: Any, given: Given) -> dict[str, bool]:
    """All fields of a class, and whether each has a Timestamp. ``given``: by the type variables around the class."""
    origin = get_origin(cls) or cls
    # Each class has type variables of its own, though bases and subclasses may use the same objects.
    variables = zip(getattr(origin, "__parameters__", ()), get_args(cls), strict=False)
    here = {variable: has_timestamp(kind, given) for variable, kind in variables}
    found: dict[str, bool] = {}
    for base in reversed(vars(origin).get("__orig_bases__", origin.__bases__)):
        if isinstance(get_origin(base) or base, type):  # TypedDict is a function
            found |= _fields(base, here)
    if own := getattr(origin, "__annotations__", {}):
        hints = get_type_hints(origin, include_extras=True)
        # A TypedDict has the annotations of its bases as its own.
        found |= {name: found.get(name, False) or has_timestamp(hints[name], here) for name in own}
    return found


def holds_timestamps(info: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Whether a class anywhere in a type has a field with a Timestamp. ``seen``: the classes around it."""
    fields: tuple[Any, ...] = getattr(info, "fields", ())
    if fields:
        if info.cls in seen:
            return False
        if timestamps_of(info.cls):
            return True
        seen |= {info.cls}
    single = [getattr(info, name, None) for name in ("type", "item_type", "key_type", "value_type")]
    parts = [*single, *getattr(info, "item_types", ()), *getattr(info, "types", ()), *(one.type for one in fields)]
    return any(holds_timestamps(one, seen) for one in parts if isinstance(one, inspect.Type))
