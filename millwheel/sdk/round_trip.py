"""Whether a value can be read again: its encoding decodes as the declared type, to an equal value (sections 4.3, 4.4).

Python does not check annotations at run time, so a hook can put a ``str`` where an ``int`` is declared. Its encoding
would be committed, and every later reader of the state or the stream would fail. The check runs when the value is
encoded. It decodes the encoding, because only the decoder knows exactly what the decoder accepts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final, get_args, get_origin

import msgspec

from millwheel.sdk.errors import ValueEncodeError
from millwheel.sdk.typeinfo import type_name

__all__ = ["ADVICE", "Check", "difference", "quick_check", "round_trip_check", "verified"]

Check = Callable[[Any, bytes], None]
"""Takes a value and its encoding. ValueEncodeError if the encoding cannot be read again as that value."""

ADVICE: Final = "; give it a value of the declared type, or declare the type that it has"
"""Ends what is said of a value that is not of its declared type."""


def round_trip_check(decode: Callable[[bytes], Any], where: str, name: str, *, equal: bool = True) -> Check:
    """The check of values of one declared type.

    Args:
        decode: The decoder of the declared type.
        where: What the value belongs to, for messages: ``computation 'counter', stream 'windows'``.
        name: The declared type, for messages.
        equal: Whether the decoded value must equal the original. Without it, decoding must only succeed.

    Returns:
        The check. Its ValueEncodeError names ``where``, the path in the value, the value's type and the declared type.
    """

    def decodes(value: Any, encoded: bytes) -> None:
        _back(decode, where, name, value, encoded)

    def comes_back(value: Any, encoded: bytes) -> None:
        # The common case: one call into C, and one comparison.
        try:
            if decode(encoded) == value:
                return
        except Exception:
            pass  # from the decoder, or from an __eq__ of the user's own: what is below finds out
        found = difference(value, _back(decode, where, name, value, encoded))
        if found is not None:
            raise ValueEncodeError(_message(where, name, value, found))

    return comes_back if equal else decodes


def quick_check(annotation: Any, check: Check) -> Check:
    """``check`` for values of ``annotation``, without decoding where the classes of the items prove that it passes.

    So it is for a scalar, and for a dict or list of scalars, which are what most states are. An item whose class is
    exactly the declared one comes back as it is. The encoder has refused numbers and texts that have no encoding.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if _is_scalar(annotation):
        return _quick_scalar(annotation, check)
    if origin is dict and len(arguments) == 2 and all(map(_is_scalar, arguments)):
        return _quick_dict(*arguments, check)
    if origin is list and len(arguments) == 1 and _is_scalar(arguments[0]):
        return _quick_list(*arguments, check)
    return check


def _is_scalar(annotation: Any) -> bool:
    return any(annotation is kind for kind in (bool, bytes, float, int, str))


def _quick_scalar(kind: type, check: Check) -> Check:
    def check_scalar(value: Any, encoded: bytes) -> None:
        if value.__class__ is not kind:
            check(value, encoded)

    return check_scalar


def _quick_dict(key_kind: type, item_kind: type, check: Check) -> Check:
    def check_dict(value: Any, encoded: bytes) -> None:
        if value.__class__ is dict:
            for key, item in value.items():
                if key.__class__ is not key_kind or item.__class__ is not item_kind:
                    break
            else:
                return
        check(value, encoded)

    return check_dict


def _quick_list(kind: type, check: Check) -> Check:
    def check_list(value: Any, encoded: bytes) -> None:
        if value.__class__ is list:
            for item in value:
                if item.__class__ is not kind:
                    break
            else:
                return
        check(value, encoded)

    return check_list


def verified(
    encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], checked: Callable[[Any], bytes], check: Check
) -> Callable[[Any], bytes]:
    """An encoder of what comes back as an equal value: what ``checked`` and ``check`` do, with fewer calls.

    Args:
        encode: The bare encoder.
        decode: The bare decoder.
        checked: The encoder that refuses what is not of the declared class; ValueEncodeError.
        check: What refuses what could not be read again; ValueEncodeError.

    Returns:
        The encoder. It raises what ``checked`` and ``check`` raise.
    """

    def verify(value: Any) -> bytes:
        try:
            encoded = encode(value)
            if decode(encoded) == value:
                return encoded
        except Exception:
            pass  # from the encoder, the decoder, or an __eq__ of the user's own: what is below finds out
        encoded = checked(value)
        check(value, encoded)
        return encoded

    return verify


def _back(decode: Callable[[bytes], Any], where: str, name: str, value: Any, encoded: bytes) -> Any:
    try:
        return decode(encoded)
    except Exception as error:
        raise ValueEncodeError(_message(where, name, value, str(error))) from error


def _message(where: str, name: str, value: Any, why: str) -> str:
    given = type_name(type(value))
    return f"{where}: this {given} could not be read again as {name}: {why}: {value!r:.200}{ADVICE}"


def difference(value: Any, back: Any, path: str = "$") -> str | None:
    """Where ``back``, which was decoded from the encoding of ``value``, differs from it; None if they are equal.

    Compares fields and items where ``==`` is False: it is for NaN, and for classes that compare by identity.
    """
    if _equal(value, back):
        return None
    inner = _inner(value, back, path)
    if inner is None:
        return f"{_shown(value)} would be read as {_shown(back)} - at `{path}`"
    return next((found for one in inner if (found := difference(*one)) is not None), None)


def _equal(value: Any, back: Any) -> bool:
    try:
        if value == back:
            return True
    except Exception:
        return _same_number(value, back)  # an __eq__ of the user's own, or a signaling NaN
    return _same_number(value, back)


def _same_number(value: Any, back: Any) -> bool:
    """NaN equals no number, itself included."""
    return isinstance(value, float | Decimal) and type(value) is type(back) and repr(value) == repr(back)


def _inner(value: Any, back: Any, path: str) -> Iterable[tuple[Any, Any, str]] | None:
    """The parts of both, in pairs, with their paths; None if the two have no parts to compare one by one."""
    if isinstance(value, dict) and isinstance(back, dict):
        return [(value[key], back[key], f"{path}[{key!r}]") for key in value] if value.keys() == back.keys() else None
    for kind in (list, tuple):
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
