"""What windows produce."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from millwheel.core.time import Timestamp

__all__ = ["Result"]

T = TypeVar("T")


class Result(msgspec.Struct, Generic[T], frozen=True):
    """The aggregate of one key and window, ``start`` inclusive and ``end`` exclusive.

    ``revision`` is 0 for the result produced at the window's end, and counts the corrections by
    late records that were produced since.
    """

    key: str
    start: Timestamp
    end: Timestamp
    value: T
    revision: int = 0
