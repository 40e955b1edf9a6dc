"""A set of positions, as ranges (6.1.1)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

__all__ = ["Ranges"]


class Ranges:
    """A set of positions, as sorted ranges that do not touch one another.

    Each question costs a bisection, however many positions the ranges have.

    >>> known = Ranges([range(0, 10), range(10, 12), range(20, 30)])
    >>> list(known), 11 in known, 12 in known
    ([range(0, 12), range(20, 30)], True, False)
    """

    __slots__ = ("_starts", "_stops")

    def __init__(self, ranges: Iterable[range] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for one in ranges:
            self.add(one)

    def __iter__(self) -> Iterator[range]:
        return map(range, self._starts, self._stops)

    def __len__(self) -> int:
        return len(self._starts)

    def __contains__(self, position: int) -> bool:
        at = bisect_right(self._stops, position)
        return at < len(self._starts) and self._starts[at] <= position

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranges):
            return NotImplemented
        return self._starts == other._starts and self._stops == other._stops

    __hash__ = None  # type: ignore[assignment]

    def covers(self, positions: range) -> bool:
        """Whether the set has all of ``positions``, which are not empty."""
        at = bisect_right(self._stops, positions.start)
        return at < len(self._starts) and self._starts[at] <= positions.start and positions.stop <= self._stops[at]

    def overlaps(self, positions: range) -> bool:
        """Whether the set has any of ``positions``, which are not empty."""
        at = bisect_right(self._stops, positions.start)
        return at < len(self._starts) and self._starts[at] < positions.stop

    def add(self, positions: range) -> None:
        """Add ``positions``, which are not empty."""
        start, stop = positions.start, positions.stop
        first, last = bisect_left(self._stops, start), bisect_right(self._starts, stop)
        if first < last:
            start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def remove(self, positions: range) -> None:
        """Remove ``positions``, which are not empty, as far as the set has them."""
        start, stop = positions.start, positions.stop
        first, last = bisect_right(self._stops, start), bisect_left(self._starts, stop)
        if first >= last:
            return
        rest = [range(self._starts[first], start), range(stop, self._stops[last - 1])]
        self._starts[first:last] = [one.start for one in rest if one]
        self._stops[first:last] = [one.stop for one in rest if one]

    def drop_below(self, position: int) -> None:
        """Remove all positions below ``position``."""
        if self._starts and self._starts[0] < position:
            self.remove(range(self._starts[0], position))
