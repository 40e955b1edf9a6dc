"""Figures of a dead-letter stream's log for operators: what is left to do, and for how long. Any thread may ask."""

from __future__ import annotations

from millwheel.worker.log.state import LogState

__all__ = ["retention_used", "unhandled_letters"]


def unhandled_letters(state: LogState) -> int:
    """How many kept letters are neither replayed nor discarded."""
    return max(0, state.records.end - state.records.start - state.letters.handled())


def retention_used(state: LogState) -> float:
    """The share of the retention that the oldest unhandled letter has used, by age or size. The log drops it at 1."""
    oldest, retention = state.letters.unhandled_from, state.retention
    segments = [one for one in (*state.records.closed, state.records.open) if one.end > oldest]
    if oldest >= state.records.end or not segments:
        return 0.0
    age = (state.clock.age - segments[0].age) / retention.max_age if retention.max_age else 0.0
    size = sum(one.size for one in segments) / retention.max_bytes if retention.max_bytes else 0.0
    return max(0.0, age, size)
