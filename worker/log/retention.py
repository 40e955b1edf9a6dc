"""What a log may forget: what every cursor has ACKed, or, without cursors, what is old or too much (design §9).

Decided when an entry is sealed, and journaled with it: every owner forgets the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from millwheel.worker.log.segments import Segment
from millwheel.worker.log.state import LogState

__all__ = ["Retainer"]

_AGE_PARTS: Final = 8
"""A segment is cut when it is this part of the largest age old, so that age is kept to about that part."""
_SHORTEST: Final = 1_000_000
"""But not before this age, in microseconds."""


class Retainer:
    """Decides from which offset on records are kept."""

    def __init__(self, state: LogState) -> None:
        self.state = state
        self._age = state.config.retention.max_age
        self._bytes = state.config.retention.max_bytes
        self._cut_age = max(_SHORTEST, self._age // _AGE_PARTS)

    def is_old(self, segment: Segment) -> bool:
        """Whether the open segment should end now, for its oldest records must not wait for new ones to go."""
        if not self._age or segment.end == segment.first:
            return False
        age = self.state.wall - segment.opened
        return age >= min(self._cut_age, self._age)

    def due(self) -> int | None:
        """When the oldest segment has become too old; None where age does not count."""
        state = self.state
        if not self._age or state.cursors.durable:
            return None
        oldest = next(state.records.oldest(), None)
        return None if oldest is None else oldest.wall + self._age

    def start_after(self, cursors: Mapping[str, int], cuts: Sequence[int]) -> int:
        """The oldest offset to keep once ``cursors`` stand so; only segments already closed, or cut now, can go."""
        records = self.state.records
        start = records.start
        if cursors:
            acked = min(cursors.values())
            for segment in self._whole(cuts):
                if segment.end > acked:
                    break
                start = segment.end
            return start
        kept = records.kept
        for segment in self._whole(cuts):
            old = self._age and segment.wall + self._age <= self.state.wall
            if not old and not (self._bytes and kept > self._bytes):
                break
            start = segment.end
            kept -= segment.size
        return start

    def _whole(self, cuts: Sequence[int]) -> Iterator[Segment]:
        """The committed segments that get no more records."""
        records = self.state.records
        yield from records.closed
        if cuts and cuts[0] == records.open.end:
            yield records.open
