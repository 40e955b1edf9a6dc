"""How many timestamps lie where: a small summary that can be put together with others (section 7.2).

Timestamps are counted in buckets of a width of 2^shift microseconds, aligned to the epoch, so that buckets of different
sketches are the same ones. The width is the smallest with which no more than a number of buckets are in use:
a sketch of sketches is therefore the sketch of all their timestamps, in whatever order they were put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from millwheel.core.time import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["MOST_BUCKETS", "TimestampSketch"]

MOST_BUCKETS: Final = 128
_MOST_SHIFT: Final = 64
"""With it every timestamp is in one of two buckets."""


class TimestampSketch:
    """Counts of timestamps by bucket. Microseconds; of a bucket its lower edge is told, never more (G7)."""

    __slots__ = ("_counts", "shift")

    def __init__(self, shift: int = 0, counts: Mapping[int, int] | None = None) -> None:
        """``counts`` by bucket number, a timestamp >> ``shift``. ValueError for a sketch that cannot be."""
        if not 0 <= shift <= _MOST_SHIFT:
            raise ValueError(f"a sketch's shift is from 0 to {_MOST_SHIFT}, not {shift}")
        self.shift = shift
        self._counts = dict(counts or {})
        if any(count <= 0 for count in self._counts.values()):
            raise ValueError("a bucket counts one timestamp or more")
        low, high = MIN_TIMESTAMP >> shift, MAX_TIMESTAMP >> shift
        if any(not low <= bucket <= high for bucket in self._counts):
            raise ValueError("a bucket is outside of all time")
        self._fit()

    @property
    def counts(self) -> Mapping[int, int]:
        """Counts by bucket number."""
        return self._counts

    @property
    def total(self) -> int:
        """How many timestamps it has."""
        return sum(self._counts.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TimestampSketch):
            return NotImplemented
        return (self.shift, self._counts) == (other.shift, other._counts)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TimestampSketch(shift={self.shift}, counts={self._counts})"

    def add(self, timestamps: Iterable[tuple[int, int]]) -> None:
        """Count timestamps, each with how often it is there."""
        counts = self._counts
        for timestamp, count in timestamps:
            bucket = timestamp >> self.shift
            held = counts.get(bucket)
            counts[bucket] = count if held is None else held + count
            if held is None and len(counts) > MOST_BUCKETS:
                self._fit()
                counts = self._counts

    def merge(self, other: TimestampSketch) -> None:
        """Count what ``other`` counts, too."""
        if other.shift > self.shift:
            self._coarsen(other.shift)
        by = self.shift - other.shift
        for bucket, count in other._counts.items():
            self._counts[bucket >> by] = self._counts.get(bucket >> by, 0) + count
        self._fit()

    def at_rank(self, rank: int) -> int | None:
        """At least how large the timestamp is that ``rank`` others are before; None if there are no more than these."""
        for bucket in sorted(self._counts):
            rank -= self._counts[bucket]
            if rank < 0:
                return max(bucket << self.shift, MIN_TIMESTAMP)
        return None

    def _coarsen(self, shift: int) -> None:
        by, counts = shift - self.shift, dict[int, int]()
        for bucket, count in self._counts.items():
            counts[bucket >> by] = counts.get(bucket >> by, 0) + count
        self.shift, self._counts = shift, counts

    def _fit(self) -> None:
        """Make the buckets as wide as need be, and no wider."""
        while len(self._counts) > MOST_BUCKETS:
            self._coarsen(self.shift + 1)
