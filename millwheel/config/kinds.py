"""The kinds of settings' values: how each type is read from TOML and from text (environment, flags). Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from millwheel.errors import did_you_mean

__all__ = ["Check", "Kind", "kind_of", "one_line"]

Check = Callable[[Any], Any]
"""Takes a value of the right type and returns it, normalized. ValueError ("it takes ...") if it is not allowed."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of one type are read. ``takes`` says what is allowed. Both functions raise ValueError otherwise."""

    takes: str
    from_toml: Callable[[Any], Any]
    from_text: Callable[[str], Any]


def kind_of(annotation: Any) -> Kind:
    """Return the kind for a dataclass field's type."""
    if get_origin(annotation) is Literal:
        return _choice(get_args(annotation))
    return _KINDS[annotation]


def _typed(allowed: type | tuple[type, ...], takes: str, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        # In Python a boolean is a number. In a configuration that is a mistake.
        if not isinstance(value, allowed) or (isinstance(value, bool) and allowed is not bool):
            raise ValueError(f"it takes {takes}")
        return convert(value)

    return check


def _parsed(parse: Callable[[str], Any], takes: str) -> Callable[[str], Any]:
    def check(text: str) -> Any:
        try:
            return parse(text.strip())
        except (ValueError, KeyError) as error:
            raise ValueError(f"it takes {takes}") from error

    return check


def _finite(value: float) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("it takes a finite number")
    return number


def _strings(value: list[Any]) -> tuple[str, ...]:
    if not all(isinstance(item, str) for item in value):
        raise ValueError(f"it takes {_LIST}")
    return tuple(value)


def _path(text: str) -> Path | None:
    if "\0" in text:
        raise ValueError("it takes a path, and no path has a NUL")
    try:
        return Path(text).expanduser() if text else None
    except RuntimeError as error:
        raise ValueError(f"it takes a path: {error}") from error


def _choice(names: tuple[str, ...]) -> Kind:
    takes = " or ".join(f'"{name}"' for name in names)

    def check(value: Any) -> str:
        if value not in names:
            raise ValueError(f"it takes {takes}{did_you_mean(str(value), names)}")
        return str(value)

    return Kind(takes, check, check)


_BOOLEANS: Final = {"true": True, "false": False}
_LIST: Final = 'a list of strings, such as ["a", "b"] (in the environment and in flags: a,b)'

_KINDS: Final[dict[Any, Kind]] = {
    str: Kind("a string", _typed(str, "a string", str), str),
    bool: Kind(
        "true or false",
        _typed(bool, "true or false", bool),
        _parsed(lambda text: _BOOLEANS[text.lower()], "true or false"),
    ),
    int: Kind("a whole number", _typed(int, "a whole number", int), _parsed(int, "a whole number")),
    float: Kind(
        "a number", _typed((int, float), "a number", _finite), _parsed(lambda text: _finite(float(text)), "a number")
    ),
    tuple[str, ...]: Kind(
        _LIST,
        _typed(list, _LIST, _strings),
        lambda text: tuple(part.strip() for part in text.split(",") if part.strip()),
    ),
    Path | None: Kind("a path", _typed(str, "a path", _path), _path),
}


def one_line(value: str) -> str:
    """Check for a name: not empty, and without spaces, slashes or control characters."""
    if not value or any(char.isspace() or not char.isprintable() or char == "/" for char in value):
        raise ValueError("it takes a name without spaces and slashes")
    return value
