"""What the store has answered an interval: rows and parts that it has read or written."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.worker.admission import DeliveryAdmission
from millwheel.worker.interval.commits.commits import CommitPipeline
from millwheel.worker.interval.hooks.scheduler import KeyScheduler
from millwheel.worker.interval.spilled_timers import is_spilled
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import (
    GiveUp,
    IntervalEffect,
    PartsMissing,
    PartsRead,
    PartsWritten,
    StatesFlushed,
    StatesRead,
)

__all__ = ["StoreAnswers"]


class StoreAnswers:
    """Passes each answer on to the owner of the data."""

    def __init__(
        self, state: IntervalState, scheduler: KeyScheduler, commits: CommitPipeline, admission: DeliveryAdmission
    ) -> None:
        self._journal = state.journal
        self._scheduler = scheduler
        self._blocked_keys = scheduler.blocked_keys
        self._commits = commits
        self._checkpoints = commits.checkpoints
        self._admission = admission

    def states_read(self, event: StatesRead) -> Sequence[IntervalEffect]:
        """Rows of keys and pages that are not in the cache."""
        committed = self._journal.committed
        if newer := next((row for row in event.rows if row is not None and row.commit > committed), None):
            # Rows hold committed state only, so a newer row comes from a successor. No hook here may run on a
            # successor's state.
            return [GiveUp(f"another owner has written the row of key {newer.key!r}, as of commit {newer.commit}")]
        for key, row in zip(event.keys, event.rows, strict=True):
            if key not in event.damaged:
                self._blocked_keys.row_read(key, row.blob if row is not None else b"")
        for key, why in event.damaged.items():
            self._blocked_keys.row_damaged(key, why)
        return []

    def states_flushed(self, event: StatesFlushed) -> None:
        """Rows are written."""
        self._checkpoints.rows.flushed(event.number)

    def parts_written(self, event: PartsWritten) -> Sequence[IntervalEffect]:
        """Parts are written: those of a base, of id segments, or of an entry."""
        self._checkpoints.parts_written(event.number)
        self._admission.segments.written(event.number)
        return self._commits.parts_written(event.number)

    def parts_missing(self, event: PartsMissing) -> Sequence[IntervalEffect]:
        """Parts that were to be read do not exist any more."""
        if is_spilled(event.parts):
            self._checkpoints.spilling.raise_missing(event)
        return self._admission.lookups.segments_missing(event)

    def parts_read(self, event: PartsRead) -> Sequence[IntervalEffect]:
        """Parts are read: spilled timers, or id segments."""
        if is_spilled(event.blobs):
            self._checkpoints.spilling.read(event)
            return []
        return self._admission.lookups.segments_read(event)
