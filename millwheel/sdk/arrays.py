"""NumPy's arrays and scalars as values and states. Nothing here imports NumPy: most programs have none of them.

An array is stored as a list of its dtype, its shape and its bytes, and a scalar as a plain number.
"""

from __future__ import annotations

import sys
import typing
from typing import Any, Final

from millwheel.sdk.typeinfo import type_name

__all__ = ["from_plain", "is_nan", "is_numpy", "plain_of", "same_array"]

_SCALAR_KINDS: Final = "biuf"
"""The kinds of dtypes whose scalars are stored: bool, int, unsigned int and float."""
_SCALAR_BYTES: Final = 8
"""The largest scalar. A longer float has no plain number."""
_ARRAY_KINDS: Final = "biufcmMSU"
"""The kinds of dtypes whose arrays are stored: those of scalars, complex numbers, times and texts."""


def is_numpy(cls: Any) -> bool:
    """Whether a class is that of arrays, or of scalars that can be stored."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(cls, type) or cls.__module__ != "numpy":
        return False
    return cls is numpy.ndarray or (issubclass(cls, numpy.generic) and _is_scalar(cls))


def is_nan(value: Any) -> bool:
    """Whether a value is the float NaN, of Python or of NumPy."""
    if not isinstance(value, float):
        cls = value.__class__
        if not is_numpy(cls) or cls is sys.modules["numpy"].ndarray:
            return False
    return bool(value != value)


def _is_scalar(cls: Any) -> bool:
    try:
        dtype = sys.modules["numpy"].dtype(cls)
    except TypeError:  # an abstract class, such as numpy.generic
        return False
    return dtype.type is cls and dtype.kind in _SCALAR_KINDS and dtype.itemsize <= _SCALAR_BYTES


def plain_of(value: Any) -> Any:
    """What is encoded for an array or a scalar.

    Raises:
        TypeError: Such arrays cannot be encoded.
    """
    if value.__class__ is not sys.modules["numpy"].ndarray:
        return value.item()
    if value.dtype.kind not in _ARRAY_KINDS:
        raise TypeError(f"an array of dtype {value.dtype} cannot be encoded")
    return [value.dtype.str, value.shape, value.tobytes()]


def from_plain(annotation: Any, plain: Any) -> Any:
    """The array or scalar of a type from what was encoded.

    Raises:
        ValueError: It is of another type, or is none.
    """
    numpy = sys.modules["numpy"]
    cls = typing.get_origin(annotation) or annotation
    if cls is not numpy.ndarray:
        return _scalar(cls, plain)
    try:
        dtype, shape, data = plain
        array = numpy.frombuffer(data, dtype).reshape(shape).copy()
    except Exception as error:
        raise ValueError(f"{type_name(type(plain))} is no array: {error}") from error
    item = _item(annotation)
    if item is not None and not issubclass(array.dtype.type, item):
        raise ValueError(f"the array has dtype {array.dtype}, not {item.__name__}")
    return array


def _item(annotation: Any) -> Any:
    """The class of an array's items, or None if its type does not say it."""
    for dtype in typing.get_args(annotation)[1:]:
        for item in typing.get_args(dtype):
            return item if isinstance(item, type) and item is not Any else None
    return None


def _scalar(cls: Any, plain: Any) -> Any:
    kinds: tuple[type, ...] = {"b": (bool,), "f": (float, int)}.get(sys.modules["numpy"].dtype(cls).kind, (int,))
    if type(plain) in kinds:
        made = cls(plain)
        if made.item() == plain or plain != plain:  # NaN does not equal itself
            return made
    raise ValueError(f"{plain!r:.80} is no {cls.__name__}")


def same_array(value: Any, back: Any) -> bool:
    """Whether two values are arrays of the same dtype, shape and bytes."""
    numpy = sys.modules.get("numpy")
    if numpy is None or value.__class__ is not numpy.ndarray or back.__class__ is not numpy.ndarray:
        return False
    same: bool = value.dtype == back.dtype and value.shape == back.shape and value.tobytes() == back.tobytes()
    return same
