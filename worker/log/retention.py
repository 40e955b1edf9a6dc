"""Retention of a log: which records it drops, and when (section 4.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from millwheel.worker.log.segments import LogSegment
from millwheel.worker.log.state import LogState

__all__ = ["Retainer"]


class Retainer:
    """Decides which records a log drops: those that every cursor has ACKed.

    If a retention is set or there is no cursor, they must also be too old or too many. No retention
    keeps as many as the log's cap, so records that no cursor waits for never stop the producers. The decision is made
    when an entry is sealed, and journaled with it. So every owner drops the same records.
    """

    def __init__(self, state: LogState) -> None:
        self.state = state

    def drops_some(self, cursors: Mapping[str, int]) -> bool:
        """Whether the log would drop records if the open segment ended now."""
        records = self.state.records
        return self.start_after(cursors, [records.open.end]) > records.start

    def due(self) -> int | None:
        """When the oldest segment becomes too old, or when the age must be journaled, on the steady clock.

        None if there is no maximum age, or a cursor that must ACK first. The caller knows that there are records, and
        that their ages matter: the retention is stated, or there is no cursor.
        """
        state, retention = self.state, self.state.retention
        if not retention.max_age:
            return None
        oldest = state.records.closed[0] if state.records.closed else state.records.open
        cursors = state.cursors.durable
        if cursors and min(cursors.values()) < oldest.end:
            return None
        return state.clock.at(min(oldest.age + retention.max_age, state.clock.journaled_age + retention.journal_age))

    def start_after(self, cursors: Mapping[str, int], cuts: Sequence[int]) -> int:
        """The oldest offset to keep with cursors at ``cursors``. Only closed segments, or those cut now, can go."""
        records = self.state.records
        start, kept = records.start, records.kept
        acked = min(cursors.values(), default=records.end)
        retains = self.state.retention.stated or not cursors
        for segment in self._whole(cuts):
            if segment.end > acked or (retains and not self._beyond(segment, kept)):
                break
            start = segment.end
            kept -= segment.size
        return start

    def _beyond(self, segment: LogSegment, kept: int) -> bool:
        """Whether the retention drops the oldest segment, when ``kept`` bytes are kept in all."""
        retention = self.state.retention
        old = retention.max_age and segment.age + retention.max_age <= self.state.clock.age
        return bool(old or kept > min(retention.max_bytes or kept, self.state.settings.retained_bytes))

    def _whole(self, cuts: Sequence[int]) -> Iterator[LogSegment]:
        """The committed segments that get no more records."""
        records = self.state.records
        yield from records.closed
        if cuts and cuts[0] == records.open.end:
            yield records.open
