"""Interval maps in chunks: how a map of any size is kept in records of a bounded one (section 7.1, G11).

A chunk is a run of neighbouring intervals. In the order of their keys, the chunks of a map cover every key exactly
once, at each revision: an edit replaces chunks by others that cover the same keys, and writes those alone. A chunk
that has grown beyond the bounds is cut in halves; one that has shrunk is joined with a neighbour if they
fill three quarters of a chunk at most, so that a chunk just cut is not joined again by the next merge.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import lt
from typing import Final

from millwheel.core.keys import KeyInterval
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import common_pb2 as common

__all__ = [
    "FEW_INTERVALS",
    "MOST_BYTES",
    "MOST_INTERVALS",
    "Chunk",
    "CoverageError",
    "MapEdit",
    "check_coverage",
    "interval_from_proto",
    "interval_to_proto",
]

MOST_INTERVALS: Final = 256
FEW_INTERVALS: Final = 64
"""A chunk with fewer looks for a neighbour to be joined with."""
MOST_BYTES: Final = 192 << 10
"""Keys take up to 4 KiB each: with long ones a chunk is full with fewer intervals."""

Intervals = Sequence[catalog.IntervalRecord]


class CoverageError(ValueError):
    """The intervals of an interval map do not cover every key exactly once."""


def interval_from_proto(message: common.KeyInterval) -> KeyInterval:
    """The interval that a message stands for; ValueError if it is empty."""
    return KeyInterval(message.start, message.end if message.HasField("end") else None)


def interval_to_proto(interval: KeyInterval) -> common.KeyInterval:
    """The message of an interval; an open end is an absent field."""
    return common.KeyInterval(start=interval.start, end=interval.end)


def check_coverage(name: str, intervals: Sequence[KeyInterval]) -> None:
    """The one statement of G11: in the order given, the intervals cover every key exactly once."""
    if not intervals:
        raise CoverageError(f"interval map {name}: no intervals at all")
    if intervals[0].start != b"":
        raise CoverageError(f"interval map {name}: keys below {intervals[0].start!r} belong to no interval")
    for left, right in pairwise(intervals):
        if left.end != right.start:
            raise CoverageError(f"interval map {name}: {left} and {right} overlap or leave a gap")
    if intervals[-1].end is not None:
        raise CoverageError(f"interval map {name}: keys from {intervals[-1].end!r} on belong to no interval")


class Chunk:
    """A run of neighbouring intervals under its number; nothing in it is ever changed."""

    __slots__ = ("end", "intervals", "number", "start", "starts")

    def __init__(self, name: str, number: int, intervals: Iterable[catalog.IntervalRecord]) -> None:
        """CoverageError unless each interval begins where the one before ends; ValueError if one is empty.
        ``name`` is the map's."""
        self.number = number
        self.intervals = tuple(intervals)
        if not self.intervals:
            raise CoverageError(f"interval map {name}: chunk {number} has no intervals at all")
        self.starts = [interval.keys.start for interval in self.intervals]
        self.start, self.end = self.starts[0], _end_of(self.intervals[-1])
        # Whole lists are compared, for maps are large; what is wrong is looked for only when something is.
        ends = [interval.keys.end for interval in self.intervals]
        last = self.end is None or self.starts[-1] < self.end
        if ends[:-1] != self.starts[1:] or not all(map(lt, self.starts, self.starts[1:])) or not last:
            for left, right in pairwise(interval_from_proto(interval.keys) for interval in self.intervals):
                if left.end != right.start:
                    raise CoverageError(f"interval map {name}: {left} and {right} overlap or leave a gap")
            interval_from_proto(self.intervals[-1].keys)

    def locate(self, key: bytes) -> catalog.IntervalRecord:
        """The interval that holds ``key``, which is one of the chunk's."""
        return self.intervals[bisect_right(self.starts, key) - 1]


class MapEdit:
    """Changes to one map in the making. What it was made from is left as it is."""

    def __init__(self, name: str, chunks: Sequence[Chunk]) -> None:
        """``chunks``: the whole map as it stands, in the order of their keys; none: the map is new."""
        self._name = name
        self._before = {chunk.number: chunk for chunk in chunks}
        self._chunks = list(chunks)
        self._starts = [chunk.start for chunk in chunks]
        self._next = max(self._before, default=-1) + 1

    def replace_all(self, intervals: Intervals) -> None:
        """Make ``intervals`` the whole map. Chunks whose part of it does not differ stay as they are."""
        check_coverage(self._name, [interval_from_proto(interval.keys) for interval in intervals])
        if not self._chunks:
            self._put(0, 0, list(intervals))
            return
        ends = {chunk.end for chunk in self._chunks}
        begin = 0
        for index, interval in enumerate(intervals):
            # Where an interval ends with a chunk, what follows can be compared with the next chunk by itself.
            if _end_of(interval) in ends:
                self.replace(intervals[begin : index + 1])
                begin = index + 1

    def replace(self, intervals: Intervals) -> bool:
        """Put ``intervals``, neighbours in key order, in place of those that have the same keys together; whether
        that changes anything. CoverageError if they do not begin and end where intervals of the map do."""
        new = Chunk(self._name, -1, intervals)
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

    def intervals_of(self, start: bytes, end: bytes | None) -> list[catalog.IntervalRecord]:
        """The intervals, whole, that share a key with those from ``start`` to ``end``, as the edit has them."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        last = len(self._chunks) if end is None else bisect_left(self._starts, end)
        found = (interval for chunk in self._chunks[first:last] for interval in chunk.intervals)
        asked = KeyInterval(start, end)
        return [interval for interval in found if interval_from_proto(interval.keys).overlaps(asked)]

    def changes(self) -> tuple[list[Chunk], list[int]]:
        """The chunks to be written, and the numbers of those to be deleted: these never come back."""
        written = [chunk for chunk in self._chunks if self._before.get(chunk.number) is not chunk]
        return written, sorted(self._before.keys() - {chunk.number for chunk in self._chunks})

    def _put(self, first: int, last: int, intervals: list[catalog.IntervalRecord]) -> None:
        """Make ``intervals`` the contents of the chunks from ``first`` to before ``last``."""
        first, last, intervals = self._join(first, last, intervals)
        numbers = [chunk.number for chunk in self._chunks[first:last]]
        runs = _cut(intervals)
        for _ in range(len(runs) - len(numbers)):
            numbers.append(self._next)
            self._next += 1
        made = [Chunk(self._name, number, run) for number, run in zip(numbers, runs, strict=False)]
        # A run that is what some chunk was before keeps that very chunk: nothing is written for it.
        made = [self._unchanged(chunk) for chunk in made]
        self._chunks[first:last] = made
        self._starts[first:last] = [chunk.start for chunk in made]

    def _unchanged(self, chunk: Chunk) -> Chunk:
        before = self._before.get(chunk.number)
        return before if before is not None and before.intervals == chunk.intervals else chunk

    def _join(
        self, first: int, last: int, intervals: list[catalog.IntervalRecord]
    ) -> tuple[int, int, list[catalog.IntervalRecord]]:
        if len(intervals) >= FEW_INTERVALS:
            return first, last, intervals
        size = _size(intervals)
        for index in (last, first - 1):
            if not 0 <= index < len(self._chunks):
                continue
            neighbour = self._chunks[index].intervals
            few = len(intervals) + len(neighbour) <= MOST_INTERVALS * 3 // 4
            if few and size + _size(neighbour) <= MOST_BYTES * 3 // 4:
                if index == last:
                    return first, last + 1, [*intervals, *neighbour]
                return first - 1, last, [*neighbour, *intervals]
        return first, last, intervals


def _end_of(interval: catalog.IntervalRecord) -> bytes | None:
    return interval.keys.end if interval.keys.HasField("end") else None


def _size(intervals: Intervals) -> int:
    return sum(interval.ByteSize() for interval in intervals)


def _cut(intervals: Intervals) -> list[Intervals]:
    """Runs within the bounds. A single interval is never too large."""
    if len(intervals) == 1 or (len(intervals) <= MOST_INTERVALS and _size(intervals) <= MOST_BYTES):
        return [intervals]
    middle = len(intervals) // 2
    return _cut(intervals[:middle]) + _cut(intervals[middle:])
