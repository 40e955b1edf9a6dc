"""Key functions that only read a field, such as ``lambda bid: bid.auction``, are the same as the field's path.

A path is better than a function: an injector without the user's code can read it.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from dataclasses import replace
from keyword import iskeyword
from operator import attrgetter
from typing import Any, Final, NoReturn

from millwheel.sdk.errors import UsageError
from millwheel.sdk.keys import KeyExtractor, key

__all__ = ["extractor_of", "path_of"]

RESERVED: Final = ("key", "start", "end", "revision")
"""The fields that results have without a key's name."""


class _Probe:
    """Stands for a value, and records the fields that are read from it. Any other use raises _NotAFieldError."""

    __slots__ = ("_path",)

    def __init__(self, path: tuple[str, ...] = ()) -> None:
        object.__setattr__(self, "_path", path)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_"):
            raise _NotAFieldError
        return _Probe((*path_in(self), name))

    def __bool__(self) -> NoReturn:
        raise _NotAFieldError

    __hash__ = __eq__ = __str__ = __repr__ = __format__ = __len__ = __iter__ = __call__ = __bool__  # type: ignore[assignment]
    __getitem__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __int__ = __index__ = __bool__


class _NotAFieldError(Exception):
    """The function does more than to read a field."""


def path_in(probe: _Probe) -> tuple[str, ...]:
    """The fields that led to ``probe``."""
    path: tuple[str, ...] = object.__getattribute__(probe, "_path")
    return path


def path_of(function: Callable[[Any], Any]) -> str | None:
    """The path of the field that the function reads and returns. None if it does anything else."""
    try:
        found = function(_Probe())
    except Exception:  # the function does more than to read a field; it fails in its own way
        return None
    if type(found) is not _Probe:
        return None
    path = path_in(found)
    return ".".join(path) if path and _reads_only(function, path) else None


def _reads_only(function: Callable[[Any], Any], path: tuple[str, ...]) -> bool:
    """Whether the function reads these fields of every value.

    One call is no proof: ``bid.id if type(bid) is Bid else bid.bid`` reads other fields of other values.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return type(function) is attrgetter
    jumps = (*dis.hasjrel, *dis.hasjabs)
    return {*code.co_names} == {*path} and not any(one.opcode in jumps for one in dis.get_instructions(code))


def extractor_of(parts: tuple[Any, ...], name: str = "") -> KeyExtractor:
    """The key extractor for the arguments of ``key_by``.

    Raises:
        UsageError: They are neither field paths nor one function. Or ``name`` is given with paths, or is no name of a
            field.
    """
    if len(parts) == 1 and callable(parts[0]):
        path = path_of(parts[0])
        extractor = key(parts[0]) if path is None else key(path)
    else:
        extractor = key(*parts)
        if name:
            raise UsageError(f"name={name!r} names the key of a function: a key of fields has the names of these")
    if not name:
        return extractor
    if not name.isidentifier() or iskeyword(name) or name in RESERVED:
        raise UsageError(f"name= takes the name of a field that results do not have otherwise, not {name!r}")
    return replace(extractor, name=name)
