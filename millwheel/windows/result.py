"""The results of windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from millwheel.model.time import Timestamp

__all__ = ["Result", "Row"]

T = TypeVar("T")


class Result(msgspec.Struct, Generic[T], frozen=True):
    """The aggregate of one key and window, from ``start`` (inclusive) to ``end`` (exclusive), in microseconds.

    ``revision`` is 0 for the first result, which is that of the window's end if there are no early ones. Each further
    result increases it by 1.
    """

    key: str
    start: Timestamp
    end: Timestamp
    value: T
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A user's type of results, in place of Result.

    ``make`` returns one of ``type``. Its arguments are those of Result, in this order.
    """

    type: Any
    make: Callable[[str, Timestamp, Timestamp, Any, int], Any]
