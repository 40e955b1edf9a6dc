"""What a step's argument must be, by its annotation: the type that it means, and not its text.

So an alias, ``Optional``, a union in any order, and a module with or without ``from __future__ import annotations`` all
mean the same. An annotation that means a type without a kind here is not checked: operators check those values.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Mapping
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from millwheel.agg.reading import Of
from millwheel.model.time import TimeDomain
from millwheel.windows.assigners import Assigner, SessionWindows

__all__ = ["ArgumentKind", "argument_kinds"]


class ArgumentKind(NamedTuple):
    """What an argument must be, and the words for it."""

    fits: Callable[[Any], bool]
    words: str


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_WINDOWS: Final = "windows, such as windows.tumbling(mw.minutes(1))"
_KINDS: Final[Mapping[Any, ArgumentKind]] = {
    bool: ArgumentKind(lambda value: isinstance(value, bool), "True or False"),
    int: ArgumentKind(_is_int, "a whole number"),
    str: ArgumentKind(lambda value: isinstance(value, str), "a name"),
    NoneType: ArgumentKind(lambda value: value is None, ""),
    TimeDomain: ArgumentKind(lambda value: isinstance(value, TimeDomain), "a mw.TimeDomain"),
    collections.abc.Callable: ArgumentKind(callable, "a function"),
    Assigner: ArgumentKind(lambda value: hasattr(value, "windows_of"), _WINDOWS),
    SessionWindows: ArgumentKind(lambda value: isinstance(value, SessionWindows), _WINDOWS),
}
_WORDS: Final = ((Of, "a field or a function"),)
"""Words for whole annotations, where those of the parts say less."""


def argument_kinds(annotations: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, ArgumentKind]:
    """Return the kinds of the arguments that are checked.

    Args:
        annotations: By argument: a type, or its text.
        names: The names of the module that the texts are from.
    """
    found = {}
    for argument, annotation in annotations.items():
        kind = _kind_of(_meant(annotation, names))
        if kind is not None:
            found[argument] = kind
    return found


def _meant(annotation: Any, names: Mapping[str, Any]) -> Any:
    """The type that an annotation means. Any: only a type checker knows its names."""
    holder = SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(holder, globalns=dict(names))["it"]
    except NameError:
        return Any


def _kind_of(meant: Any) -> ArgumentKind | None:
    """The kind of a type. None: some values of it are not checked here, so none is."""
    origin = get_origin(meant)
    if origin is Annotated:
        return _kind_of(get_args(meant)[0])
    if origin is Union or origin is UnionType:
        kinds = [_kind_of(part) for part in get_args(meant)]
        known = [kind for kind in kinds if kind is not None]
        return _any_of(meant, known) if len(known) == len(kinds) else None
    if origin is collections.abc.Callable:
        return _KINDS[collections.abc.Callable]
    return _KINDS.get(meant) if isinstance(meant, type) or meant is collections.abc.Callable else None


def _any_of(meant: Any, kinds: list[ArgumentKind]) -> ArgumentKind:
    words = dict.fromkeys(kind.words for kind in kinds if kind.words)
    stated = next((text for whole, text in _WORDS if whole == meant), " or ".join(words))
    return ArgumentKind(lambda value: any(kind.fits(value) for kind in kinds), stated)
