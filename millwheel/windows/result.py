"""The results of windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, Generic, TypeVar

import msgspec

from millwheel.agg.reading import same
from millwheel.model.time import Timestamp
from millwheel.sdk.exact_types import exact_test_of_all

__all__ = ["Result", "Row", "encoded_frame", "encoder_of", "text_head"]

T = TypeVar("T")

_FIXED_MAP: Final = 0x80
"""The first byte of a map with up to 15 fields in MessagePack, without their number."""
_encode: Final = msgspec.msgpack.Encoder().encode


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


def encoder_of(
    value_type: Any, result: Callable[[Any], Any]
) -> Callable[[Sequence[bytes], Timestamp, Timestamp, Sequence[Any]], list[bytes] | None] | None:
    """A function from keys, a window and the accumulator of each key to first results in MessagePack, and no Result.

    It returns None if a key is not ASCII, or a value not exactly of its type: the codec then judges each result.

    Args:
        value_type: The type of the values. None is returned if it has no exact test.
        result: Makes a value of an accumulator.

    >>> encode = encoder_of(int, int)
    >>> list(map(msgspec.msgpack.decode, encode([b"cat"], 0, 10, [3])))
    [{'key': 'cat', 'start': 0, 'end': 10, 'value': 3, 'revision': 0}]
    """
    exact = exact_test_of_all(value_type)
    if exact is None:
        return None
    begin, names, tail = encoded_frame()

    def encoded(
        keys: Sequence[bytes], start: Timestamp, end: Timestamp, accumulators: Sequence[Any]
    ) -> list[bytes] | None:
        values = accumulators if result is same else list(map(result, accumulators))
        if not (b"".join(keys).isascii() and exact(values)):
            return None
        sizes = list(map(len, keys))
        heads = {size: begin + text_head(size) for size in set(sizes)}
        middle = names[0] + _encode(start) + names[1] + _encode(end) + names[2]
        parts = zip(map(heads.__getitem__, sizes), keys, repeat(middle), map(_encode, values), repeat(tail))
        return list(map(b"".join, parts))

    return encoded


def encoded_frame() -> tuple[bytes, list[bytes], bytes]:
    """What first results have in MessagePack before the key, the names of start, end and value, and what follows."""
    first, *names = map(_encode, Result.__struct_fields__)
    begin = bytes([_FIXED_MAP | len(names) + 1]) + first
    return begin, names[:-1], names[-1] + _encode(0)


def text_head(size: int) -> bytes:
    """What a text of so many bytes has before it in MessagePack."""
    return _encode("x" * size)[: -size or None]
