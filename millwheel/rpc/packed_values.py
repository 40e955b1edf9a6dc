"""Many encoded values in one buffer, in the form in which journals and messages have them.

Results of windows come by thousands. As single objects, each of them is made, counted, copied and encoded again on its
way to a log, in the log's journal, and to subscribers. In one buffer all of that is a copy of bytes.

No stored or sent form is new: an array of MessagePack and a repeated field of protobuf have two bytes before each short
value, and the same content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final, overload

import msgspec

__all__ = ["MAX_PACKED", "PackedValues", "joined_values", "sizes_of", "stored_form"]

MAX_PACKED: Final = 255
"""The most bytes of a packed value. MessagePack has longer ones behind three bytes."""
_HEAD: Final = 2
"""The bytes before each value: a type, and its length."""
_TYPE: Final = 0xC4
"""MessagePack's type of short byte strings."""
_MAX_SHORT: Final = 127
"""The longest value whose length is one byte in protobuf."""
_LENGTH_DELIMITED: Final = 2
"""Protobuf's wire type of byte strings."""


class PackedValues(Sequence[bytes]):
    """Values in one buffer. To read one of them makes it.

    >>> values = PackedValues.pack([b"cat", b"", b"dog"])
    >>> values[2], values.size, values[1:].tolist()
    (b'dog', 6, [b'', b'dog'])
    """

    __slots__ = ("_bounds", "_content")

    def __init__(self, content: bytes, bounds: Any) -> None:
        """
        Args:
            content: The values, each behind its two bytes, as an array of MessagePack has them.
            bounds: A NumPy array of int64: where each of them begins in ``content``, and where the last one ends.
        """
        self._content = content
        self._bounds = bounds

    @classmethod
    def pack(cls, values: Sequence[bytes]) -> PackedValues:
        """Pack some values, of at most ``MAX_PACKED`` bytes each."""
        import numpy as np

        sizes = list(map(len, values))
        heads = {size: bytes([_TYPE, size]) for size in set(sizes)}
        content = b"".join(chain.from_iterable(zip(map(heads.__getitem__, sizes), values, strict=True)))
        bounds = accumulate((size + _HEAD for size in sizes), initial=0)
        return cls(content, np.fromiter(bounds, np.int64, len(sizes) + 1))

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> PackedValues: ...

    def __getitem__(self, index: int | slice) -> bytes | PackedValues:
        if isinstance(index, slice):
            first, end, step = index.indices(len(self))
            if step != 1:
                return PackedValues.pack(self.tolist()[index])
            return PackedValues(self._content, self._bounds[first : max(first, end) + 1])
        at = range(len(self))[index]
        return self._content[int(self._bounds[at]) + _HEAD : int(self._bounds[at + 1])]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        """Whether the other sequence has the same values."""
        return isinstance(other, Sequence) and self.tolist() == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def tolist(self) -> list[bytes]:
        """The values as objects."""
        content, bounds = self._content, self._bounds.tolist()
        return [content[first + _HEAD : end] for first, end in pairwise(bounds)]

    def sizes(self) -> list[int]:
        """The bytes of each value."""
        found: list[int] = (self._bounds[1:] - self._bounds[:-1] - _HEAD).tolist()
        return found

    @property
    def size(self) -> int:
        """The bytes of all values."""
        return int(self._bounds[-1]) - int(self._bounds[0]) - _HEAD * len(self)

    @property
    def longest(self) -> int:
        """The bytes of the longest value. There is at least one."""
        return int((self._bounds[1:] - self._bounds[:-1]).max()) - _HEAD

    def _bytes(self) -> bytes:
        return self._content[int(self._bounds[0]) : int(self._bounds[-1])]

    def owned(self) -> PackedValues:
        """The same values in a buffer that has no others: what keeps them keeps nothing else in memory (G13)."""
        content = self._bytes()
        return self if content is self._content else PackedValues(content, self._bounds - self._bounds[0])

    def stored(self) -> msgspec.Raw:
        """The array of MessagePack that a list of the values becomes."""
        count = len(self)
        if count < 1 << 4:
            head = bytes([0x90 | count])
        else:
            head = b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
        return msgspec.Raw(head + self._bytes())

    def as_field(self, number: int) -> bytes | None:
        """The values as a repeated field of an encoded message. None: one of them is too long for that.

        Args:
            number: That of the field, up to 15.
        """
        if not len(self):
            return b""
        if self.longest > _MAX_SHORT:
            return None
        import numpy as np

        content = bytearray(self._bytes())
        np.frombuffer(content, np.uint8)[self._bounds[:-1] - self._bounds[0]] = number << 3 | _LENGTH_DELIMITED
        return bytes(content)


def joined_values(parts: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
    """The values of all parts: a list, or packed if most of them are, and the others can be."""
    if len(parts) == 1:
        return parts[0]
    packed = sum(len(part) for part in parts if isinstance(part, PackedValues))
    if not packed or 2 * packed < sum(map(len, parts)):
        return list(chain.from_iterable(parts))
    others = (part for part in parts if not isinstance(part, PackedValues))
    if max(map(len, chain.from_iterable(others)), default=0) > MAX_PACKED:
        return list(chain.from_iterable(parts))
    return _joined([part if isinstance(part, PackedValues) else PackedValues.pack(part) for part in parts])


def _joined(parts: Sequence[PackedValues]) -> PackedValues:
    import numpy as np

    bounds, end = [np.zeros(1, np.int64)], 0
    for part in parts:
        bounds.append(part._bounds[1:] - part._bounds[0] + end)
        end += int(part._bounds[-1]) - int(part._bounds[0])
    return PackedValues(b"".join(part._bytes() for part in parts), np.concatenate(bounds))


def sizes_of(values: Sequence[bytes]) -> Iterable[int]:
    """The bytes of each value."""
    return values.sizes() if isinstance(values, PackedValues) else map(len, values)


def stored_form(value: Any) -> Any:
    """What an encoder of MessagePack stores for packed values: the array that they are.

    Raises:
        TypeError: It is another object, which has no stored form.
    """
    if isinstance(value, PackedValues):
        return value.stored()
    raise TypeError(f"a {type(value).__name__} has no stored form")
