"""Interval maps as the catalog keeps them: the journal, sequencer and owner of each key (section 7.1, G11)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from millwheel.core.keys import KeyInterval
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import common_pb2 as common

__all__ = [
    "CoverageError",
    "IntervalTable",
    "check_coverage",
    "initial_intervals",
    "interval_from_proto",
    "interval_to_proto",
]

_FIRST_PRINTABLE, _LAST_PRINTABLE = 0x20, 0x7E


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


def initial_intervals(count: int, split_points: Iterable[bytes] = ()) -> list[KeyInterval]:
    """The intervals that a computation of which no key was seen yet begins with.

    ``split_points`` are taken as they are, if there are any. Else ``count`` intervals divide the printable
    ASCII range evenly, by two characters: user keys are text, and dividing the whole byte space would
    leave most intervals without a key. Both are a guess; splits by observed keys correct it.
    """
    points = sorted(set(split_points)) or _spread(count)
    if b"" in points:
        raise ValueError("the empty key cannot be a split point: every interval map begins there")
    edges: list[bytes | None] = [*points, None]
    return [KeyInterval(start, end) for start, end in zip([b"", *points], edges, strict=True)]


def _spread(count: int) -> list[bytes]:
    width = _LAST_PRINTABLE - _FIRST_PRINTABLE + 1
    if not 1 <= count <= width * width:
        raise ValueError(f"{count} initial intervals: give a number from 1 to {width * width}")
    points = []
    for index in range(1, count):
        high, low = divmod(index * width * width // count, width)
        points.append(bytes([_FIRST_PRINTABLE + high, _FIRST_PRINTABLE + low]))
    return points


class IntervalTable:
    """An interval map made ready for look-ups; CoverageError if the record breaks G11."""

    __slots__ = ("_starts", "intervals", "record")

    def __init__(self, name: str, record: catalog.IntervalMapRecord) -> None:
        self.record = record
        self.intervals = tuple(interval_from_proto(interval.keys) for interval in record.intervals)
        check_coverage(name, self.intervals)
        self._starts = [interval.start for interval in self.intervals]

    def index_of(self, key: bytes) -> int:
        """The position of the interval that holds ``key``: there is exactly one."""
        return bisect_right(self._starts, key) - 1

    def locate(self, key: bytes) -> catalog.IntervalRecord:
        """The interval that holds ``key``."""
        return self.record.intervals[self.index_of(key)]
