"""The results of a window in one buffer, which NumPy fills (section 4.6).

Results of one window differ in their keys and values alone. Those with keys of one length, and values that are encoded
alike, have equal places for both. So each such group is a table of bytes, whose rows have their places in the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millwheel.agg.reading import same
from millwheel.model.time import Timestamp
from millwheel.rpc.packed_values import MAX_PACKED, PackedValues
from millwheel.sdk.exact_types import exact_test_of_all
from millwheel.windows.result import encoded_frame, text_head

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column

__all__ = ["packer_of"]

_MAX_GROUPS: Final = 24
"""Each group costs some calls of NumPy. Results of more groups are encoded one by one."""
_INTEGERS: Final = (
    *((b"\xd3", 8), (b"\xd2", 4), (b"\xd1", 2), (b"\xd0", 1)),
    (b"", 1),
    *((b"\xcc", 1), (b"\xcd", 2), (b"\xce", 4), (b"\xcf", 8)),
)
"""MessagePack's forms of integers: what comes first, and how many bytes follow. The least integers come first."""
_EDGES: Final = (-(1 << 31), -(1 << 15), -(1 << 7), -(1 << 5), 1 << 7, 1 << 8, 1 << 16, 1 << 32)
"""The least integer of each form but the first one."""
_FLOATS: Final = ((b"\xcb", 8),)
_FORMS: Final = 16
"""More than there are forms of one type."""

_encode: Final = msgspec.msgpack.Encoder().encode


def packer_of(
    value_type: Any, result: Callable[[Any], Any]
) -> Callable[[Sequence[bytes], Timestamp, Timestamp, Sequence[Any]], PackedValues | None] | None:
    """As ``encoder_of``, for results that are packed. None: the values are neither integers nor floats.

    The function also returns None for results that are too long, or that differ too much in their lengths.

    >>> pack = packer_of(int, int)
    >>> [msgspec.msgpack.decode(one)["value"] for one in pack([b"cat", b"horse"], 0, 10, [3, 1_000])]
    [3, 1000]
    """
    if value_type is not int and value_type is not float:
        return None
    exact = exact_test_of_all(value_type)
    assert exact is not None, "numbers have an exact test"
    begin, names, tail = encoded_frame()

    def packed(
        keys: Sequence[bytes], start: Timestamp, end: Timestamp, accumulators: Sequence[Any]
    ) -> PackedValues | None:
        text = b"".join(keys)
        if not text.isascii():
            return None
        values = accumulators if result is same else list(map(result, accumulators))
        if not exact(values):
            return None
        numbers = _numbers(values, value_type)
        if numbers is None:
            return None
        middle = names[0] + _encode(start) + names[1] + _encode(end) + names[2]
        return _packed(list(map(len, keys)), text, numbers, (begin, middle, tail))

    return packed


def _numbers(values: Sequence[Any], kind: type) -> Column | None:
    """The values as a column. None: an integer is beyond 64 bits."""
    import numpy as np

    try:
        return np.array(values, np.int64 if kind is int else np.float64)
    except OverflowError:
        return None


def _packed(
    sizes: Sequence[int], text: bytes, numbers: Column, frame: tuple[bytes, bytes, bytes]
) -> PackedValues | None:
    """The results with these numbers.

    Args:
        sizes: The sizes of the keys.
        text: All keys, one behind the other.
        numbers: The values.
        frame: What each result has before its key, before its value, and behind it.
    """
    import numpy as np

    integers = numbers.dtype == np.int64
    forms = _INTEGERS if integers else _FLOATS
    lengths = np.array(sizes, np.int64)
    if not len(lengths) or lengths.min() == 0 or lengths.max() > MAX_PACKED:
        return None
    kinds = np.searchsorted(_EDGES, numbers, "right") if integers else np.zeros(len(numbers), np.int64)
    codes = lengths * _FORMS + kinds
    groups = np.flatnonzero(np.bincount(codes)).tolist()
    if len(groups) > _MAX_GROUPS:
        return None
    templates = {code: _Template(frame, code // _FORMS, *forms[code % _FORMS]) for code in groups}
    if max(one.size for one in templates.values()) > MAX_PACKED:
        return None
    swapped = numbers.astype(">i8" if integers else ">f8").view(np.uint8).reshape(len(numbers), 8)
    if len(groups) == 1:
        (template,) = templates.values()
        rows = template.filled(np.frombuffer(text, np.uint8).reshape(len(lengths), -1), swapped)
        return PackedValues(rows.tobytes(), np.arange(len(lengths) + 1) * rows.shape[1])
    of_code = np.zeros(max(groups) + 1, np.int64)
    of_code[groups] = [len(templates[code].content) for code in groups]
    bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(of_code[codes])))
    starts, content = np.cumsum(lengths) - lengths, np.empty(int(bounds[-1]), np.uint8)
    for code, template in templates.items():
        mine = np.flatnonzero(codes == code)
        own_keys = _pieces(text, code // _FORMS)[starts[mine]].view(np.uint8).reshape(len(mine), -1)
        rows = template.filled(own_keys, swapped[mine])
        _pieces(content, rows.shape[1])[bounds[:-1][mine]] = rows.view(f"V{rows.shape[1]}").ravel()
    return PackedValues(content.tobytes(), bounds)


def _pieces(content: Any, size: int) -> Column:
    """All pieces of so many bytes, by where they begin."""
    import numpy as np

    return np.ndarray((len(content) - size + 1,), f"V{size}", content, 0, (1,))


class _Template:
    """The bytes of the results whose keys have one length, and whose values have one form."""

    __slots__ = ("content", "key", "size", "value")

    def __init__(self, frame: tuple[bytes, bytes, bytes], length: int, head: bytes, width: int) -> None:
        """
        Args:
            frame: What each result has before its key, before its value, and behind it.
            length: That of the keys.
            head: What comes before the values' own bytes.
            width: The number of these bytes.
        """
        begin, middle, tail = frame
        before = begin + text_head(length)
        result = before + bytes(length) + middle + head + bytes(width) + tail
        self.size = len(result)
        self.content = bytes([0xC4, self.size & 0xFF]) + result
        first = len(self.content) - self.size + len(before)
        self.key = slice(first, first + length)
        last = len(self.content) - len(tail)
        self.value = slice(last - width, last)

    def filled(self, keys: Column, numbers: Column) -> Column:
        """The results as rows of bytes.

        Args:
            keys: Their keys, each a row of bytes.
            numbers: The eight bytes of each value, the most significant one first.
        """
        import numpy as np

        rows = np.frombuffer(bytearray(self.content * len(keys)), np.uint8).reshape(len(keys), -1)
        rows[:, self.key] = keys
        rows[:, self.value] = numbers[:, 8 - (self.value.stop - self.value.start) :]
        return rows
