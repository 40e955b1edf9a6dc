"""Which segments of a log are in memory, and which in the store.

Invariant: a segment that is not stored is in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from millwheel.worker.log.segment_values import SegmentValues
from millwheel.worker.log.segments import CommittedRecords, LogSegment

__all__ = ["StoredRecords"]

_NO_COMMIT: Final = 1 << 62
"""Larger than every commit number."""


class StoredRecords(CommittedRecords):
    """All segments of a log, in memory, in the store, or both."""

    def __init__(self, first: int = 0) -> None:
        super().__init__(first)
        self.dirty: dict[int, LogSegment] = {}
        """Closed segments that the store has not acknowledged, by first offset, in commit order."""
        self.emptied: dict[int, int] = {}
        """Rows to be emptied: first offset → the commit that dropped the segment, in order of these commits."""
        self.dirty_memory = 0

    def restore(self, segments: list[LogSegment], end: int) -> None:
        """Start with the segments of a base."""
        self.closed = segments
        self._firsts = [segment.first for segment in self.closed]
        self.open = LogSegment(end)
        self.start, self.end = segments[0].first if segments else end, end
        self.kept = sum(segment.size for segment in self.closed)

    def _close(self, replayed: bool) -> None:
        segment = self.open
        if segment.end == segment.first:
            return
        segment.written = replayed
        self.closed.append(segment)
        self._firsts.append(segment.first)
        self.dirty[segment.first] = segment
        self.dirty_memory += segment.memory
        self.open = LogSegment(segment.end)

    def _forget(self, segment: LogSegment, commit: int) -> None:
        self.kept -= segment.size
        if segment.loaded:
            self.memory -= segment.memory
        if self.dirty.pop(segment.first, None) is not None:
            self.dirty_memory -= segment.memory
        self._clean.pop(segment.first, None)
        if segment.written:
            self.emptied[segment.first] = commit

    # The store.

    def stored_to(self) -> int:
        """Up to this commit, the rows of all closed segments are acknowledged."""
        oldest = next(iter(self.dirty.values()), None)
        behind = _NO_COMMIT if oldest is None else oldest.commit
        return min(behind, next(iter(self.emptied.values()), _NO_COMMIT)) - 1

    def acknowledged(self, firsts: Sequence[int], emptied: Sequence[tuple[int, int]]) -> None:
        """The rows of segments ``firsts`` are stored. The rows ``emptied`` are empty."""
        for first in firsts:
            segment = self.dirty.pop(first, None)
            if segment is not None:
                self.dirty_memory -= segment.memory
                self._clean[first] = segment
        for first, commit in emptied:
            if self.emptied.get(first) == commit:
                del self.emptied[first]

    def loaded(self, segment: LogSegment) -> None:
        """A segment has been read back."""
        self.memory += segment.memory
        self._clean[segment.first] = segment

    def evict(self, limit: int) -> None:
        """Remove the least recently used stored segments from memory, until at most ``limit`` bytes are used."""
        while self.memory > limit and self._clean:
            _, segment = self._clean.popitem(last=False)
            self.memory -= segment.memory
            segment.values, segment.timestamps = SegmentValues(), []
            segment.mark_offsets, segment.mark_values = [], []
            segment.loaded = False

    def known(self, first: int) -> LogSegment | None:
        """The closed segment that begins at ``first``. None if there is none (any more)."""
        at = bisect_right(self._firsts, first) - 1
        return self.closed[at] if at >= 0 and self._firsts[at] == first else None

    def oldest(self) -> LogSegment | None:
        """The oldest segment. None if there is no record."""
        oldest = self.closed[0] if self.closed else self.open
        return oldest if oldest.end > oldest.first else None
