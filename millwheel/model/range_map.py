"""A map that is constant on key intervals, for example of owners or watermarks (sections 7.1, 7.2).

The pieces are disjoint and sorted. Keys in no piece are *gaps*. Adjacent pieces with equal values stay separate,
because a piece represents an interval of a computation and not only a value.

A lookup is a binary search, and so is an assignment that replaces exactly one piece. Any other assignment also moves
the tails of three lists. That is one block copy for each list, without work for each piece.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

from millwheel.model.keys import ALL_KEYS, KeyInterval

__all__ = ["RangeMap"]

V = TypeVar("V")


class RangeMap(Generic[V]):
    """A piecewise constant map from keys to values of type ``V``.

    When an assignment cuts a piece, the remains keep the *same* value object. A caller with mutable values must assign
    copies to the remains.
    """

    __slots__ = ("_are_values_shared", "_pieces", "_starts", "_values")

    def __init__(self) -> None:
        self._starts: list[bytes] = []
        self._pieces: list[KeyInterval] = []
        self._values: list[V] = []
        self._are_values_shared = False
        """Whether a caller has the list of the values. Invariant: a list that a caller has never changes."""

    @classmethod
    def from_items(cls, items: Iterable[tuple[KeyInterval, V]]) -> RangeMap[V]:
        """A map of ``items``, which may be in any order; ValueError if two of them overlap."""
        ordered = sorted(items, key=lambda item: item[0].start)
        for (left, _), (right, _) in pairwise(ordered):
            if left.end is None or left.end > right.start:
                raise ValueError(f"intervals {left} and {right} overlap")
        made = cls()
        made._starts = [piece.start for piece, _ in ordered]
        made._pieces = [piece for piece, _ in ordered]
        made._values = [value for _, value in ordered]
        return made

    def __len__(self) -> int:
        """The number of pieces."""
        return len(self._starts)

    def items(self) -> Iterator[tuple[KeyInterval, V]]:
        """All pieces in key order. The caller must not change the map during the iteration."""
        return zip(self._pieces, self._values, strict=True)

    def values(self) -> Sequence[V]:
        """The values in key order of their pieces. Later assignments do not change the list.

        The next assignment copies the list, if there is one. To copy 100,000 values takes milliseconds, because each
        of them is counted.
        """
        self._are_values_shared = True
        return self._values

    def exact(self, interval: KeyInterval) -> V | None:
        """The value of the piece that is exactly ``interval``; None if there is no such piece."""
        index = self._index_of(interval)
        return None if index is None else self._values[index]

    def overlapping(self, interval: KeyInterval) -> list[tuple[KeyInterval, V]]:
        """The whole pieces that overlap ``interval``, in key order."""
        first, last = self._span(interval)
        return list(zip(self._pieces[first:last], self._values[first:last], strict=True))

    def overlapping_values(self, interval: KeyInterval) -> Iterator[V]:
        """The values of the pieces that overlap ``interval``, in key order. Nothing is copied.

        The caller must not change the map during the iteration.
        """
        return map(self._values.__getitem__, range(*self._span(interval)))

    def gaps(self, interval: KeyInterval = ALL_KEYS) -> list[KeyInterval]:
        """The parts of ``interval`` that no piece covers, in key order."""
        first, last = self._span(interval)
        found = []
        reached: bytes | None = interval.start
        for piece in self._pieces[first:last]:
            if reached is not None and piece.start > reached:
                found.append(KeyInterval(reached, piece.start))
            reached = piece.end
        if reached is not None and (interval.end is None or reached < interval.end):
            found.append(KeyInterval(reached, interval.end))
        return found

    def assign(self, interval: KeyInterval, value: V) -> None:
        """Make ``interval`` one piece with ``value``. A piece that this cuts keeps its part outside the interval."""
        if self._are_values_shared:
            self._values, self._are_values_shared = self._values.copy(), False
        index = self._index_of(interval)
        if index is not None:
            self._values[index] = value
            return
        first, last = self._span(interval)
        middle = [(interval, value)]
        if first < last:
            left, right = self._pieces[first], self._pieces[last - 1]
            if left.start < interval.start:
                middle.insert(0, (KeyInterval(left.start, interval.start), self._values[first]))
            if interval.end is not None and (right.end is None or interval.end < right.end):
                middle.append((KeyInterval(interval.end, right.end), self._values[last - 1]))
        self._starts[first:last] = [piece.start for piece, _ in middle]
        self._pieces[first:last] = [piece for piece, _ in middle]
        self._values[first:last] = [value for _, value in middle]

    def _index_of(self, interval: KeyInterval) -> int | None:
        """The index of the piece that equals ``interval``, or None."""
        index = bisect_left(self._starts, interval.start)
        if index < len(self._starts):
            piece = self._pieces[index]
            if piece.start == interval.start and piece.end == interval.end:
                return index
        return None

    def _span(self, interval: KeyInterval) -> tuple[int, int]:
        """The index range of the pieces that overlap ``interval``: the first, and one past the last."""
        first = bisect_right(self._starts, interval.start) - 1
        if first < 0 or not self._pieces[first].overlaps(interval):
            first += 1
        last = len(self._starts) if interval.end is None else bisect_left(self._starts, interval.end)
        return first, last
