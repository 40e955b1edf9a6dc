"""What a log may forget: what every cursor has ACKed and, where a retention is stated or there is no cursor, what is
old or too much (design §9).

Decided when an entry is sealed, and journaled with it: every owner forgets the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from millwheel.worker.log.segments import Segment
from millwheel.worker.log.state import LogState

__all__ = ["Retainer"]

_AGE_PARTS: Final = 8
"""A segment is cut when it is this part of the largest age old, so that age is kept to about that part. And as often
the age is journaled where nothing else is, so that an owner's end puts it back by no more."""
_SHORTEST: Final = 1_000_000
"""But not before this age, in microseconds."""


class Retainer:
    """Decides from which offset on records are kept."""

    def __init__(self, state: LogState) -> None:
        self.state = state
        self._age = state.config.retention.max_age
        self._bytes = state.config.retention.max_bytes
        self._stated = state.config.retention.stated
        self._cut_age = max(_SHORTEST, self._age // _AGE_PARTS)

    def is_old(self, segment: Segment) -> bool:
        """Whether the open segment should end now, for its oldest records must not wait for new ones to go."""
        if not self._age or segment.end == segment.first:
            return False
        return self.state.age - segment.opened >= min(self._cut_age, self._age)

    def due(self) -> int | None:
        """When the oldest segment has become too old, or the age is to be journaled; None where age does not count, or
        does not alone."""
        state = self.state
        oldest = next(state.records.oldest(), None)
        if oldest is None or not self._age:
            return None
        cursors = state.cursors.durable
        if cursors and (not self._stated or min(cursors.values()) < oldest.end):
            return None
        return state.clock_at(min(oldest.age + self._age, state.journaled_age + self._cut_age))

    def start_after(self, cursors: Mapping[str, int], cuts: Sequence[int]) -> int:
        """The oldest offset to keep once ``cursors`` stand so; only segments already closed, or cut now, can go."""
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

    def _beyond(self, segment: Segment, kept: int) -> bool:
        """Whether the retention lets go of the oldest segment, of ``kept`` bytes in all."""
        old = self._age and segment.age + self._age <= self.state.age
        return bool(old or (self._bytes and kept > self._bytes))

    def _whole(self, cuts: Sequence[int]) -> Iterator[Segment]:
        """The committed segments that get no more records."""
        records = self.state.records
        yield from records.closed
        if cuts and cuts[0] == records.open.end:
            yield records.open
