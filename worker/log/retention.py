"""Decides which records a log may drop: those that every cursor has ACKed. If a retention is set or there
is no cursor, they must also be too old or too many.

The decision is made when an entry is sealed, and journaled with it. So every owner drops the same records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from millwheel.worker.log.segments import LogSegment
from millwheel.worker.log.state import LogState

__all__ = ["Retainer"]

_SEGMENTS_PER_AGE: Final = 8
"""The open segment ends at the maximum age divided by this, so retention is that precise. The log's age is journaled
as often, if no other commit does it. So a takeover sets the age back by no more than that."""
_MIN_SEGMENT_AGE_US: Final = 1_000_000
"""The minimum for both periods, in microseconds."""


class Retainer:
    """Decides from which offset on records are kept."""

    def __init__(self, state: LogState) -> None:
        self.state = state
        self._age = state.config.retention.max_age
        self._bytes = state.config.retention.max_bytes
        self._stated = state.config.retention.stated
        self._cut_age = max(_MIN_SEGMENT_AGE_US, self._age // _SEGMENTS_PER_AGE)

    def is_old(self, segment: LogSegment) -> bool:
        """Whether to end the open segment now. Its old records must not wait for new ones to be dropped."""
        if not self._age or segment.end == segment.first:
            return False
        return self.state.age - segment.opened >= min(self._cut_age, self._age)

    def due(self) -> int | None:
        """When the oldest segment becomes too old, or when the age must be journaled, on the steady clock. None if
        there is no maximum age, no record, or a cursor that must ACK first."""
        state = self.state
        oldest = next(state.records.oldest(), None)
        if oldest is None or not self._age:
            return None
        cursors = state.cursors.durable
        if cursors and (not self._stated or min(cursors.values()) < oldest.end):
            return None
        return state.clock_at(min(oldest.age + self._age, state.journaled_age + self._cut_age))

    def start_after(self, cursors: Mapping[str, int], cuts: Sequence[int]) -> int:
        """The oldest offset to keep with cursors at ``cursors``. Only closed segments, or those cut now, can go."""
        records = self.state.records
        start, kept = records.start, records.kept
        acked = min(cursors.values(), default=records.end)
        retains = self._stated or not cursors
        for segment in self._whole(cuts):
            if segment.end > acked or (retains and not self._beyond(segment, kept)):
                break
            start = segment.end
            kept -= segment.size
        return start

    def _beyond(self, segment: LogSegment, kept: int) -> bool:
        """Whether the retention drops the oldest segment, when ``kept`` bytes are kept in all."""
        old = self._age and segment.age + self._age <= self.state.age
        return bool(old or (self._bytes and kept > self._bytes))

    def _whole(self, cuts: Sequence[int]) -> Iterator[LogSegment]:
        """The committed segments that get no more records."""
        records = self.state.records
        yield from records.closed
        if cuts and cuts[0] == records.open.end:
            yield records.open
