"""A small, mergeable histogram of timestamps (section 7.2).

Timestamps are counted in buckets of 2^shift microseconds, aligned to the epoch. Buckets of different sketches therefore
have common boundaries. A sketch uses the smallest width that needs no more than MAX_BUCKETS buckets. A merge of
sketches therefore equals the sketch of all their timestamps. The order of the merges does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["MAX_BUCKETS", "TimestampSketch"]

MAX_BUCKETS: Final = 128
_MAX_SHIFT: Final = 64
"""With this shift, every timestamp is in one of two buckets."""


class TimestampSketch:
    """Counts of timestamps by bucket, in microseconds.

    A result is the lower edge of a bucket, so it never exceeds the true timestamp (G7).
    """

    __slots__ = ("_counts", "shift")

    def __init__(self, shift: int = 0, counts: Mapping[int, int] | None = None) -> None:
        """``counts`` by bucket number, which is a timestamp >> ``shift``. ValueError for invalid arguments."""
        if not 0 <= shift <= _MAX_SHIFT:
            raise ValueError(f"a sketch's shift is from 0 to {_MAX_SHIFT}, not {shift}")
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
        """The number of timestamps."""
        return sum(self._counts.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TimestampSketch):
            return NotImplemented
        return (self.shift, self._counts) == (other.shift, other._counts)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TimestampSketch(shift={self.shift}, counts={self._counts})"

    def add(self, timestamps: Iterable[tuple[int, int]]) -> None:
        """Count timestamps. Each comes with its number of occurrences."""
        counts = self._counts
        for timestamp, count in timestamps:
            bucket = timestamp >> self.shift
            held = counts.get(bucket)
            counts[bucket] = count if held is None else held + count
            if held is None and len(counts) > MAX_BUCKETS:
                self._fit()
                counts = self._counts

    def merge(self, other: TimestampSketch) -> None:
        """Add the counts of ``other``."""
        if other.shift > self.shift:
            self._coarsen(other.shift)
        by = self.shift - other.shift
        for bucket, count in other._counts.items():
            self._counts[bucket >> by] = self._counts.get(bucket >> by, 0) + count
        self._fit()

    def at_rank(self, rank: int) -> int | None:
        """A lower bound of the timestamp at position ``rank``, counted from 0 in increasing order.

        None if there are not that many timestamps.
        """
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
        """Double the width of the buckets until there are few enough of them."""
        while len(self._counts) > MAX_BUCKETS:
            self._coarsen(self.shift + 1)
