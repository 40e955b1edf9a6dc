"""Checks that an encoded value decodes as the declared type, to an equal value (sections 4.3, 4.4).

Python does not check annotations at run time, so a hook can put a ``str`` where an ``int`` is declared. Such a value
would be committed, and every later reader of the state or the stream would fail. The check therefore runs when the
value is encoded. It decodes the encoding, because only the decoder defines exactly what it accepts.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final

import msgspec

from millwheel.sdk.arrays import is_nan, same_array
from millwheel.sdk.error_texts import bare_message
from millwheel.sdk.errors import ValueEncodeError
from millwheel.sdk.typeinfo import type_name

__all__ = ["ADVICE", "Check", "difference", "is_equal", "round_trip_check"]

Check = Callable[[Any, bytes], None]
"""Takes a value and its encoding. Raises ValueEncodeError if the encoding does not decode to that value."""

ADVICE: Final = "; give it a value of the declared type, or declare the type that it has"
"""The end of messages about values that are not of their declared type."""


def round_trip_check(decode: Callable[[bytes], Any], where: str, name: str, *, equal: bool = True) -> Check:
    """The check for values of one declared type.

    Args:
        decode: The decoder of the declared type.
        where: What the value belongs to, for messages: ``computation 'counter', stream 'windows'``.
        name: The declared type, for messages.
        equal: Whether the decoded value must equal the original. If False, the check only requires that decoding
            succeeds.

    Returns:
        The check. Its ValueEncodeError names ``where``, the path in the value, the value's type and the declared type.
    """

    def decodes(value: Any, encoded: bytes) -> None:
        _back(decode, where, name, value, encoded)

    def comes_back(value: Any, encoded: bytes) -> None:
        # The common case takes one call into C and one comparison.
        try:
            if decode(encoded) == value:
                return
        except Exception:
            pass  # the decoder or a user's __eq__ raised: the code below finds the reason
        found = difference(value, _back(decode, where, name, value, encoded))
        if found is not None:
            raise ValueEncodeError(_message(where, name, value, found))

    return comes_back if equal else decodes


def _back(decode: Callable[[bytes], Any], where: str, name: str, value: Any, encoded: bytes) -> Any:
    try:
        return decode(encoded)
    except Exception as error:
        raise ValueEncodeError(_message(where, name, value, bare_message(error))) from error


def _message(where: str, name: str, value: Any, why: str) -> str:
    given = type_name(type(value))
    return f"{where}: this {given} could not be read again as {name}: {why}: {value!r:.200}{ADVICE}"


def difference(value: Any, back: Any, path: str = "$") -> str | None:
    """Where ``back``, the decoded encoding of ``value``, differs from ``value``; None if they are equal.

    If ``==`` is False, this compares fields and items. That is needed for NaN, for arrays, and for classes that compare
    by identity.
    """
    if _equal(value, back):
        return None
    inner = _inner(value, back, path)
    if inner is None:
        return f"{_shown(value)} would be read as {_shown(back)} - at `{path}`"
    return next((found for one in inner if (found := difference(*one)) is not None), None)


def is_equal(value: Any, other: Any) -> bool:
    """Whether two values are equal. Arrays and classes with arrays are compared by their parts."""
    try:
        return bool(value == other)
    except Exception:  # an array has no truth value
        return difference(value, other) is None


def _equal(value: Any, back: Any) -> bool:
    try:
        if value == back:
            return True
    except Exception:
        pass  # a user's __eq__ raised, or the value is a signaling NaN or an array
    return _same_number(value, back) or same_array(value, back)


def _same_number(value: Any, back: Any) -> bool:
    """Whether both are NaN, which does not equal itself. A decimal has several, which differ in their texts."""
    if isinstance(value, Decimal):
        return type(value) is type(back) and repr(value) == repr(back)
    return is_nan(value) and is_nan(back)


def _inner(value: Any, back: Any, path: str) -> Iterable[tuple[Any, Any, str]] | None:
    """The parts of both values in pairs, with their paths; None if the values have no comparable parts."""
    if isinstance(value, dict) and isinstance(back, dict):
        return [(value[key], back[key], f"{path}[{key!r}]") for key in value] if value.keys() == back.keys() else None
    for kind in (list, tuple, deque):
        if isinstance(value, kind) and isinstance(back, kind):
            same = len(value) == len(back)
            pairs = enumerate(zip(value, back, strict=False))
            return [(one, other, f"{path}[{index}]") for index, (one, other) in pairs] if same else None
    if type(value) is not type(back):
        return None
    names = _fields(type(value))
    return None if names is None else [(getattr(value, one), getattr(back, one), f"{path}.{one}") for one in names]


def _fields(cls: type) -> list[str] | None:
    if issubclass(cls, msgspec.Struct):
        return list(cls.__struct_fields__)
    if dataclasses.is_dataclass(cls):
        return [one.name for one in dataclasses.fields(cls)]
    return None


def _shown(value: Any) -> str:
    return f"{type_name(type(value))} {value!r:.80}"
