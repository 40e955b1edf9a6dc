"""Interval maps in chunks: a map of any size is stored in records of bounded size (section 7.1, G11).

A chunk is a run of adjacent intervals.

Invariant: at each revision, the chunks of a map cover every key exactly once, in key order. An edit replaces chunks by
others that cover the same keys, and writes only those.

A chunk above the size bounds is cut in half. A chunk that becomes small is joined with a neighbour if both together
fill at most three quarters of a chunk. The last quarter keeps the next merge from joining a chunk that was just cut.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import lt
from typing import Final

from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import common_pb2 as common

__all__ = [
    "MAX_CHUNK_BYTES",
    "MAX_INTERVALS_PER_CHUNK",
    "MIN_INTERVALS_PER_CHUNK",
    "CoverageError",
    "IntervalChunk",
    "MapEdit",
    "check_coverage",
    "interval_from_proto",
    "interval_to_proto",
]

MAX_INTERVALS_PER_CHUNK: Final = 256
MIN_INTERVALS_PER_CHUNK: Final = 64
"""A chunk with fewer intervals than this is joined with a neighbour if possible."""
MAX_CHUNK_BYTES: Final = 192 << 10
"""The byte limit of a chunk. A key takes up to 4 KiB, so a chunk with long keys is full with fewer intervals."""

Intervals = Sequence[catalog.IntervalRecord]


class CoverageError(ValueError):
    """The intervals of an interval map do not cover every key exactly once."""


def interval_from_proto(message: common.KeyInterval) -> KeyInterval:
    """The interval that a message describes; ValueError if it is empty."""
    return KeyInterval(message.start, message.end if message.HasField("end") else None)


def interval_to_proto(interval: KeyInterval) -> common.KeyInterval:
    """The message for an interval. An open end is an absent field."""
    return common.KeyInterval(start=interval.start, end=interval.end)


def check_coverage(name: str, intervals: Sequence[KeyInterval]) -> None:
    """Raise CoverageError unless the intervals, in the given order, cover every key exactly once.

    This is the only check of G11 for a whole map.
    """
    if not intervals:
        raise CoverageError(f"interval map {name}: no intervals at all")
    if intervals[0].start != b"":
        raise CoverageError(f"interval map {name}: keys below {intervals[0].start!r} belong to no interval")
    for left, right in pairwise(intervals):
        if left.end != right.start:
            raise CoverageError(f"interval map {name}: {left} and {right} overlap or leave a gap")
    if intervals[-1].end is not None:
        raise CoverageError(f"interval map {name}: keys from {intervals[-1].end!r} on belong to no interval")


class IntervalChunk:
    """A numbered run of adjacent intervals. It is immutable."""

    __slots__ = ("end", "intervals", "number", "start", "starts")

    def __init__(self, name: str, number: int, intervals: Iterable[catalog.IntervalRecord]) -> None:
        """Check and store the intervals.

        Args:
            name: The name of the map, for errors.
            number: The chunk's number in the map.
            intervals: Adjacent intervals in key order.

        Raises:
            CoverageError: An interval does not begin where the previous one ends, or there is none.
            ValueError: An interval is empty.
        """
        self.number = number
        self.intervals = tuple(intervals)
        if not self.intervals:
            raise CoverageError(f"interval map {name}: chunk {number} has no intervals at all")
        self.starts = [interval.keys.start for interval in self.intervals]
        self.start, self.end = self.starts[0], _end_of(self.intervals[-1])
        # Maps are large, so this compares whole lists. Only after a mismatch does it search for the faulty interval.
        ends = [interval.keys.end for interval in self.intervals]
        last = self.end is None or self.starts[-1] < self.end
        if ends[:-1] != self.starts[1:] or not all(map(lt, self.starts, self.starts[1:])) or not last:
            for left, right in pairwise(interval_from_proto(interval.keys) for interval in self.intervals):
                if left.end != right.start:
                    raise CoverageError(f"interval map {name}: {left} and {right} overlap or leave a gap")
            interval_from_proto(self.intervals[-1].keys)


class MapEdit:
    """An edit of one map. The chunks that it starts from are not changed."""

    def __init__(self, name: str, chunks: Sequence[IntervalChunk]) -> None:
        """``chunks``: the whole present map, in key order. An empty sequence starts a new map."""
        self._name = name
        self._before = {chunk.number: chunk for chunk in chunks}
        self._chunks = list(chunks)
        self._starts = [chunk.start for chunk in chunks]
        self._next = max(self._before, default=-1) + 1

    def replace_all(self, intervals: Intervals) -> None:
        """Make ``intervals`` the whole map. A chunk whose intervals stay equal is not written."""
        check_coverage(self._name, [interval_from_proto(interval.keys) for interval in intervals])
        if not self._chunks:
            self._put(0, 0, list(intervals))
            return
        ends = {chunk.end for chunk in self._chunks}
        begin = 0
        for index, interval in enumerate(intervals):
            # At an interval that ends with a chunk, the next chunk can be compared separately.
            if _end_of(interval) in ends:
                self.replace(intervals[begin : index + 1])
                begin = index + 1

    def replace(self, intervals: Intervals) -> bool:
        """Replace the intervals that cover the same keys as ``intervals``, which are adjacent and in key order.

        Returns:
            Whether the map changes.

        Raises:
            CoverageError: ``intervals`` do not begin and end where intervals of the map do.
        """
        new = IntervalChunk(self._name, -1, intervals)
        first = bisect_right(self._starts, new.start) - 1
        last = len(self._chunks) - 1 if new.end is None else bisect_left(self._starts, new.end) - 1
        old = [interval for chunk in self._chunks[first : last + 1] for interval in chunk.intervals]
        begin = next((at for at, one in enumerate(old) if one.keys.start == new.start), None)
        end = next((at for at, one in enumerate(old) if _end_of(one) == new.end), None)
        if begin is None or end is None:
            whole = KeyInterval(new.start, new.end)
            raise CoverageError(f"interval map {self._name}: {whole} does not begin and end where its intervals do")
        if old[begin : end + 1] == list(new.intervals):
            return False
        self._put(first, last + 1, [*old[:begin], *new.intervals, *old[end + 1 :]])
        return True

    def changes(self) -> tuple[list[IntervalChunk], list[int]]:
        """The chunks to write, and the numbers of the chunks to delete. A deleted number is never used again."""
        written = [chunk for chunk in self._chunks if self._before.get(chunk.number) is not chunk]
        return written, sorted(self._before.keys() - {chunk.number for chunk in self._chunks})

    def _put(self, first: int, last: int, intervals: list[catalog.IntervalRecord]) -> None:
        """Make ``intervals`` the contents of the chunks with index ``first`` up to, but not including, ``last``."""
        first, last, intervals = self._join(first, last, intervals)
        numbers = [chunk.number for chunk in self._chunks[first:last]]
        runs = _cut(intervals)
        for _ in range(len(runs) - len(numbers)):
            numbers.append(self._next)
            self._next += 1
        made = [IntervalChunk(self._name, number, run) for number, run in zip(numbers, runs, strict=False)]
        # A run equal to the original chunk of the same number keeps that chunk object, so it is not written.
        made = [self._unchanged(chunk) for chunk in made]
        self._chunks[first:last] = made
        self._starts[first:last] = [chunk.start for chunk in made]

    def _unchanged(self, chunk: IntervalChunk) -> IntervalChunk:
        before = self._before.get(chunk.number)
        return before if before is not None and before.intervals == chunk.intervals else chunk

    def _join(
        self, first: int, last: int, intervals: list[catalog.IntervalRecord]
    ) -> tuple[int, int, list[catalog.IntervalRecord]]:
        if len(intervals) >= MIN_INTERVALS_PER_CHUNK:
            return first, last, intervals
        size = _size(intervals)
        for index in (last, first - 1):
            if not 0 <= index < len(self._chunks):
                continue
            neighbour = self._chunks[index].intervals
            few = len(intervals) + len(neighbour) <= MAX_INTERVALS_PER_CHUNK * 3 // 4
            if few and size + _size(neighbour) <= MAX_CHUNK_BYTES * 3 // 4:
                if index == last:
                    return first, last + 1, [*intervals, *neighbour]
                return first - 1, last, [*neighbour, *intervals]
        return first, last, intervals


def _end_of(interval: catalog.IntervalRecord) -> bytes | None:
    return interval.keys.end if interval.keys.HasField("end") else None


def _size(intervals: Intervals) -> int:
    return sum(interval.ByteSize() for interval in intervals)


def _cut(intervals: Intervals) -> list[Intervals]:
    """Cut the intervals into runs within the bounds. A single interval is never too large."""
    if len(intervals) == 1 or (len(intervals) <= MAX_INTERVALS_PER_CHUNK and _size(intervals) <= MAX_CHUNK_BYTES):
        return [intervals]
    middle = len(intervals) // 2
    return _cut(intervals[:middle]) + _cut(intervals[middle:])
