"""The values of one segment of a log: as lists, or packed, as they came."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from millwheel.rpc.packed_values import PackedValues, joined_values

__all__ = ["SegmentValues"]


class SegmentValues:
    """Values that are added at the end, and read from any place on.

    >>> values = SegmentValues([b"a"])
    >>> values.add([b"b", b"c"])
    >>> len(values), values.between(1, 3)
    (3, [b'b', b'c'])
    """

    __slots__ = ("_count", "_parts", "_starts")

    def __init__(self, values: Sequence[bytes] = ()) -> None:
        self._parts: list[Sequence[bytes]] = []
        """Packed values, and lists. No list follows another one."""
        self._starts: list[int] = []
        """The number of values before each part."""
        self._count = 0
        self.add(values)

    def add(self, values: Sequence[bytes]) -> None:
        """Add values."""
        if not values:
            return
        last = self._parts[-1] if self._parts else None
        if isinstance(values, PackedValues):
            self._begin(values.owned())
        elif isinstance(last, list):
            last += values
        else:
            self._begin(list(values))
        self._count += len(values)

    def _begin(self, part: Sequence[bytes]) -> None:
        self._parts.append(part)
        self._starts.append(self._count)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        return (value for part in self._parts for value in part)

    def between(self, first: int, end: int) -> Sequence[bytes]:
        """The values from place ``first`` to before place ``end``."""
        found: list[Sequence[bytes]] = []
        at = bisect_right(self._starts, first) - 1
        while first < end:
            begin = self._starts[at]
            part = self._parts[at][first - begin : end - begin]
            found.append(part)
            first += len(part)
            at += 1
        return joined_values(found) if found else []

    def whole(self) -> Sequence[bytes]:
        """All values."""
        return self.between(0, self._count)
