"""The committed records of a log: segments of consecutive offsets, as they grow and are read.

Invariants: The closed segments and the open one cover ``start .. end - 1`` without a gap. Every owner has the same
segments, because their ends are journaled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.columns import bytes_of
from millwheel.worker.log.entry import LogEntry
from millwheel.worker.log.segment_values import SegmentValues

__all__ = ["RECORD_OVERHEAD_BYTES", "CommittedRecords", "LogSegment", "records_size"]

RECORD_OVERHEAD_BYTES: Final = 16
"""Approximate bytes of a record beside its value, in the journal and in a segment row."""
_MEMORY_OVERHEAD_BYTES: Final = 80
"""Approximate bytes of a record in memory beside its value and RECORD_OVERHEAD: two objects, two list slots."""


def records_size(values: Sequence[bytes]) -> int:
    """Approximate bytes of records in the journal or in a row."""
    return bytes_of(values) + RECORD_OVERHEAD_BYTES * len(values)


class LogSegment:
    """Consecutive records. ``values`` and ``timestamps`` are empty while ``loaded`` is False."""

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
        self.values = SegmentValues()
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
        self.values.add(values)
        self.timestamps += timestamps
        self.end += len(values)
        self.size += records_size(values)
        self.commit, self.age = commit, entry.age

    def watermark_at(self, offset: int) -> int:
        """The watermark at ``offset`` of a loaded segment: no record from there on is below it, except late ones."""
        return self.mark_values[bisect_right(self.mark_offsets, offset) - 1]


class CommittedRecords(ABC):
    """All segments of a log. ``memory`` counts the bytes of loaded segments, ``kept`` those of all segments."""

    def __init__(self, first: int = 0) -> None:
        self.closed: list[LogSegment] = []
        self._firsts: list[int] = []
        self.open = LogSegment(first)
        self.start = self.end = first
        """The oldest offset that is kept, and the offset of the next record."""
        self._clean: OrderedDict[int, LogSegment] = OrderedDict()
        """Loaded segments that are stored, the least recently used first."""
        self.memory = 0
        self.kept = 0

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

    @abstractmethod
    def _close(self, replayed: bool) -> None:
        """End the open segment, and begin another one."""

    @abstractmethod
    def _forget(self, segment: LogSegment, commit: int) -> None:
        """The commit drops a closed segment."""

    # Reading.

    def find(self, offset: int) -> LogSegment:
        """The segment with ``offset``, which is from ``start`` to ``end``. ``end`` is in the open segment."""
        if offset >= self.open.first:
            return self.open
        segment = self.closed[bisect_right(self._firsts, offset) - 1]
        if segment.loaded and segment.first in self._clean:
            self._clean.move_to_end(segment.first)
        return segment
