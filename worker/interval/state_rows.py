"""The state rows of one interval: they follow the journal, many commits in one write (section 6.1.2; G12)."""

from __future__ import annotations

from collections.abc import Container

from millwheel.store.contract import StateRow
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import FlushStates, IntervalEffect

__all__ = ["StateRows"]


class StateRows:
    """Decides when rows are written. One write is in flight at a time.

    In each method, ``needed`` is whether something waits for the rows: a base that shows their commits.
    """

    def __init__(self, state: IntervalState) -> None:
        self._setup: IntervalSetup = state
        self._cells = state.cells
        self._journal = state.journal
        self._number = 0
        self._flush: tuple[int, int, list[tuple[bytes, int, bytes]]] | None = None
        """The flush in flight: its number, the commit at which it was captured, its rows."""
        self._flushed_at = 0
        self.upto = 0
        """Every row that changed up to this commit is acknowledged."""

    def wants_capture(self, now: int, needed: bool) -> bool:
        """Whether rows wait to be captured, once no commit is in flight."""
        return self._flush is None and bool(self._cells.dirty_count) and self._due(now, needed)

    def next_alarm(self, now: int, needed: bool) -> int | None:
        """When rows must be written if no commit comes before."""
        if self._flush is not None or not self._cells.dirty_count:
            return None
        return now if self._due(now, needed) else self._flush_at

    def capture(self, now: int, needed: bool) -> list[IntervalEffect]:
        """Write the rows if they are due. No sealed commit is in flight."""
        if self._flush is not None or not self._due(now, needed):
            return []
        self._flushed_at = now
        rows = self._cells.dirty_rows()
        if not rows:
            self.upto = self._journal.committed
            return []
        self._number += 1
        self._flush = (self._number, self._journal.committed, rows)
        config = self._setup.config
        states = [StateRow(key, commit, encoded) for key, commit, encoded in rows]
        return [FlushStates(config.computation, config.journal, config.sequencer, self._number, states)]

    def _due(self, now: int, needed: bool) -> bool:
        """Whether rows must be written now.

        The truncation point needs them, together with a base, and so does memory. Otherwise they wait, because a later
        write covers more commits.
        """
        return now >= self._flush_at or needed or self._cells.crowded

    @property
    def _flush_at(self) -> int:
        """When rows are written that nothing waits for.

        Many rows are written sooner. A move to a successor must write all of them first.
        """
        settings = self._setup.settings
        behind = settings.flush_interval
        if self._cells.dirty_count >= settings.flush_rows:
            behind = min(behind, settings.flush_apart)
        return self._flushed_at + behind

    def flushed(self, number: int, busy: Container[bytes] = ()) -> None:
        """The rows of a flush are acknowledged. The cells of ``busy`` keys are in use."""
        if self._flush is None or self._flush[0] != number:
            return
        _, commit, rows = self._flush
        self._flush = None
        self._cells.flushed(rows, busy)
        self.upto = max(self.upto, commit)

    def look(self) -> None:
        """Look whether any row is behind. If no state changes, no capture ever raises ``upto``."""
        if not self._cells.dirty_count:
            self.upto = max(self.upto, self._journal.committed)

    def recovered(self, now: int, upto: int) -> None:
        """The state has been rebuilt from the journal. Its rows above ``upto`` are behind and will be written."""
        self._flushed_at = now
        self.upto = upto
