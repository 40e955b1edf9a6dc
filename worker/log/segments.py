"""The committed records of a log: segments of consecutive offsets, in memory, in the store, or both.

Invariants: The closed segments and the open one cover ``start .. end - 1`` without a gap. A segment that is not stored
is in memory. Every owner has the same segments, because their ends are journaled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.worker.log.entry import LogEntry

__all__ = ["RECORD_OVERHEAD_BYTES", "LogSegment", "Records", "records_size"]

RECORD_OVERHEAD_BYTES: Final = 16
"""Approximate bytes of a record beside its value, in the journal and in a segment row."""
_MEMORY_OVERHEAD_BYTES: Final = 80
"""Approximate bytes of a record in memory beside its value and RECORD_OVERHEAD: two objects, two list slots."""

_NO_COMMIT: Final = 1 << 62
"""Larger than every commit number."""


def records_size(values: Sequence[bytes]) -> int:
    """Approximate bytes of records in the journal or in a row."""
    return sum(map(len, values)) + RECORD_OVERHEAD_BYTES * len(values)


class LogSegment:
    """Consecutive records. ``values`` and ``timestamps`` are empty while ``loaded`` is False."""

    __slots__ = (
        "age",
        "commit",
        "end",
        "first",
        "loaded",
        "mark_offsets",
        "mark_values",
        "opened",
        "size",
        "timestamps",
        "values",
        "watermark",
        "written",
    )

    def __init__(self, first: int) -> None:
        self.first = first
        self.end = first
        self.size = 0
        self.commit = 0
        """The commit that wrote its newest record."""
        self.age = 0
        """The log's ``age`` at that commit, in microseconds."""
        self.opened = 0
        """The log's ``age`` at the commit that wrote its oldest record."""
        self.watermark: int = MIN_TIMESTAMP
        """The watermark at its first record."""
        self.values: list[bytes] = []
        self.timestamps: list[int] = []
        self.mark_offsets: list[int] = []
        self.mark_values: list[int] = []
        self.loaded = True
        self.written = False
        """Whether the store may have a row of it."""

    @property
    def memory(self) -> int:
        """Approximate bytes in memory when loaded."""
        return self.size + _MEMORY_OVERHEAD_BYTES * (self.end - self.first)

    def extend(self, values: Sequence[bytes], timestamps: Sequence[int], entry: LogEntry, commit: int) -> None:
        """Add records of one commit."""
        if not self.mark_values or entry.watermark != self.mark_values[-1]:
            self.mark_offsets.append(self.end)
            self.mark_values.append(entry.watermark)
        if self.end == self.first:
            self.opened, self.watermark = entry.age, entry.watermark
        self.values += values
        self.timestamps += timestamps
        self.end += len(values)
        self.size += records_size(values)
        self.commit, self.age = commit, entry.age

    def watermark_at(self, offset: int) -> int:
        """The watermark at ``offset`` of a loaded segment: no record from there on is below it, except late ones."""
        return self.mark_values[bisect_right(self.mark_offsets, offset) - 1]


class Records:
    """All segments of a log. ``memory`` counts the bytes of loaded segments, ``kept`` those of all segments."""

    def __init__(self, first: int = 0) -> None:
        self.closed: list[LogSegment] = []
        self._firsts: list[int] = []
        self.open = LogSegment(first)
        self.start = self.end = first
        """The oldest offset that is kept, and the offset of the next record."""
        self.dirty: dict[int, LogSegment] = {}
        """Closed segments that the store has not acknowledged, by first offset, in commit order."""
        self.emptied: dict[int, int] = {}
        """Rows to be emptied: first offset → the commit that dropped the segment, in order of these commits."""
        self._clean: OrderedDict[int, LogSegment] = OrderedDict()
        """Loaded segments that are stored, the least recently used first."""
        self.memory = 0
        self.dirty_memory = 0
        self.kept = 0

    def restore(self, segments: list[LogSegment], end: int) -> None:
        """Start with the segments of a base."""
        self.closed = segments
        self._firsts = [segment.first for segment in self.closed]
        self.open = LogSegment(end)
        self.start, self.end = segments[0].first if segments else end, end
        self.kept = sum(segment.size for segment in self.closed)

    # Growing.

    def apply(self, entry: LogEntry, commit: int, replayed: bool = False) -> None:
        """The entry is committed: add its records, close segments at its cuts, drop those below its start.

        ``replayed``: an earlier owner may have written the rows already.
        """
        at, last = entry.first, entry.first + len(entry.values)
        for cut in entry.cuts:
            self._extend(entry, at, cut, commit)
            self._close(replayed)
            at = cut
        self._extend(entry, at, last, commit)
        self._drop(entry.start, commit)

    def _extend(self, entry: LogEntry, at: int, until: int, commit: int) -> None:
        if at == until:
            return
        low, high = at - entry.first, until - entry.first
        segment = self.open
        memory, size = segment.memory, segment.size
        if high - low == len(entry.values):
            segment.extend(entry.values, entry.timestamps, entry, commit)
        else:
            segment.extend(entry.values[low:high], entry.timestamps[low:high], entry, commit)
        self.end = segment.end
        self.memory += segment.memory - memory
        self.kept += segment.size - size

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

    def _drop(self, start: int, commit: int) -> None:
        count = 0
        for segment in self.closed:
            if segment.first >= start:
                break
            count += 1
            self._forget(segment, commit)
        del self.closed[:count]
        del self._firsts[:count]
        self.start = self.closed[0].first if self.closed else self.open.first

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
            segment.values, segment.timestamps, segment.mark_offsets, segment.mark_values = [], [], [], []
            segment.loaded = False

    # Reading.

    def find(self, offset: int) -> LogSegment:
        """The segment with ``offset``, which is from ``start`` to ``end``. ``end`` is in the open segment."""
        if offset >= self.open.first:
            return self.open
        segment = self.closed[bisect_right(self._firsts, offset) - 1]
        if segment.loaded and segment.first in self._clean:
            self._clean.move_to_end(segment.first)
        return segment

    def known(self, first: int) -> LogSegment | None:
        """The closed segment that begins at ``first``. None if there is none (any more)."""
        at = bisect_right(self._firsts, first) - 1
        return self.closed[at] if at >= 0 and self._firsts[at] == first else None

    def oldest(self) -> LogSegment | None:
        """The oldest segment. None if there is no record."""
        oldest = self.closed[0] if self.closed else self.open
        return oldest if oldest.end > oldest.first else None
