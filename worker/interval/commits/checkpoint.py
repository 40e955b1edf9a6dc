"""Keeping the journal short: when state rows and bases are written, and what waits for them (sections 6.1.2, 6.2; G12).

``OwnedJournal`` has the invariant of the truncation point. State rows follow the journal, many commits in one write.

To become independent of parents, rows and base are *pressed*: they are written at once. If no work causes an append, an
extra append names the base. The same happens before the interval moves to a successor (PrepareRelease).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

from millwheel.store.contract import StateRow
from millwheel.worker.interval.cache.cells import KeyCell
from millwheel.worker.interval.cache.flush_times import FlushTimes
from millwheel.worker.interval.commits.base_parts import write_base
from millwheel.worker.interval.commits.parents import ParentDependency, ParentNeed
from millwheel.worker.interval.commits.spilling import Spilling
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import FlushStates, IntervalEffect, ReleasePrepared, WriteParts

__all__ = ["Checkpointer", "StateRows"]

_MAX_ROUNDS: Final = 3
"""Maximum bases that are written before a move while work continues."""
_SHORT_ENTRIES: Final = 64
_SHORT_BYTES: Final = 256 << 10
"""A journal with at most this much above its truncation point is short: some milliseconds to read."""


class StateRows:
    """Captures rows that are due, in slices, and writes all of them at once. One write is in flight at a time.

    When it is acknowledged, the pump settles its cells, again in slices. Work goes on between two slices, because the
    rows of many keys take long. A row of a later slice may be newer than the commit at which the first slice was
    captured. Then it has that commit's change, too. All slices are one write, because the embedded store compares rows
    with what it has if an earlier write had newer commits.

    In each method, ``needed`` is whether something waits for the rows: a base that shows their commits.
    """

    def __init__(self, state: IntervalState) -> None:
        self._config = state.config
        self._cells = state.cells
        self._journal = state.journal
        self._number = 0
        self.flush: tuple[int, list[StateRow]] | None = None
        """The write in flight: its number and its rows."""
        self._taken: list[KeyCell] = []
        """The cells of the write that is captured or in flight."""
        self._next = 0
        """How many of them are captured. The list stays as it is: a copy of the rest for each slice would be
        quadratic."""
        self.settling = False
        """Whether the write is acknowledged, and some of its cells are not settled."""
        self._settled = 0
        """How many of them are."""
        self._captured: list[StateRow] = []
        """The rows of the slices so far."""
        self._covers = 0
        """The commit at which the first slice was captured. All rows that changed up to it are in the write."""
        settings = state.settings
        self._most = settings.flush_slice
        self.times = FlushTimes(settings.flush_interval, settings.flush_apart, settings.flush_rows)
        self.upto = 0
        """Every row that changed up to this commit is acknowledged."""

    @property
    def left(self) -> bool:
        """Whether slices of the write follow."""
        return self._next < len(self._taken)

    def wants_capture(self, now: int, needed: bool) -> bool:
        """Whether rows wait to be captured, once no commit is in flight."""
        return self.flush is None and bool(self._cells.dirty_count) and self._due(now, needed)

    def capture(self, now: int, needed: bool) -> list[IntervalEffect]:
        """Capture a slice of the rows if they are due. The last one writes all. No sealed commit is in flight."""
        if self.flush is not None or not self._due(now, needed):
            return []
        if not self.left:
            self.times.restart(now)
            self._covers, self._taken, self._next = self._journal.committed, self._cells.take_dirty(), 0
            if not self._taken:
                self.upto = self._covers
                return []
        first, self._next = self._next, self._next + self._most
        self._captured += self._cells.rows_of(self._taken[first : self._next])
        if self.left:
            return []
        rows, self._captured = self._captured, []
        self._number += 1
        self.flush = (self._number, rows)
        config = self._config
        return [FlushStates(config.incarnation, config.journal, config.sequencer, self._number, rows)]

    def _due(self, now: int, needed: bool) -> bool:
        """Whether rows must be written now.

        The truncation point needs them, together with a base, and so does memory. Otherwise they wait, because a later
        write covers more commits. Slices that have begun go on.
        """
        return self.left or now >= self.times.due_at(self._cells.dirty_count) or needed or self._cells.needs_flush

    def flushed(self, number: int) -> None:
        """The rows of a write are acknowledged. The pump settles them."""
        if self.flush is not None and self.flush[0] == number and not self.settling:
            self.settling, self._settled = True, 0

    def settle(self, busy: Container[bytes]) -> None:
        """Mark a slice of the rows that were written as acknowledged. After the last one, rows may be captured.

        The cells of ``busy`` keys are in use.
        """
        assert self.flush is not None, "a write is acknowledged"
        _, rows = self.flush
        first, self._settled = self._settled, self._settled + self._most
        self._cells.flushed(self._taken[first : self._settled], rows[first : self._settled], busy)
        if self._settled >= len(rows):
            self.flush, self.settling, self._taken, self._next = None, False, [], 0
            self.upto = max(self.upto, self._covers)

    def acknowledged(self) -> int:
        """The newest commit up to which every changed row is acknowledged."""
        if not self._cells.dirty_count:
            # If no state changes, no capture ever raises ``upto``.
            self.upto = max(self.upto, self._journal.committed)
        return self.upto

    def recovered(self, now: int, upto: int) -> None:
        """The state has been rebuilt from the journal. Its rows above ``upto`` are behind and will be written."""
        self.times.restart(now)
        self.upto = upto


class Checkpointer:
    """Writes rows and base parts, and so decides how far the truncation point moves."""

    def __init__(self, state: IntervalState) -> None:
        self._state = state
        self._settings = state.settings
        self._outbox = state.outbox
        self._journal = state.journal
        self.spilling = Spilling(state)
        self.rows = StateRows(state)
        self.parents = ParentDependency(state)
        self._requests: list[Any] = []
        """Requests that wait for a short journal."""
        self._rounds = 0
        """Maximum bases still to write for these requests."""
        self.pressing = False
        """Whether rows and base must be written as soon as possible."""
        self.releasing = False
        """Whether a request waits and the child has no base yet. Then the base has priority over new work."""

    def _requested(self) -> None:
        """The requests, or what is needed of the parents, have changed."""
        need = self.parents.need
        self.pressing = bool(self._requests) or need is not ParentNeed.NOTHING
        self.releasing = bool(self._requests) and need is ParentNeed.DATA

    def after_commit(self, now: int) -> list[IntervalEffect]:
        """Capture what is due, after a commit is acknowledged and while none is in flight."""
        if self.spilling.outgoing:
            self.spilling.release()
        # The base comes first, because it waits for rows of the same commit.
        base: list[IntervalEffect] = [self._write_base()] if self._base_due() else []
        return base + self.rows.capture(now, self.base_waits)

    def wants_all_committed(self, now: int) -> bool:
        """Whether a capture or a load of timers is due that requires that no commit is in flight."""
        rows_due = self.rows.wants_capture(now, self.base_waits)
        return rows_due or self._base_due() or self.pressing or self.spilling.wants_all_committed

    def flush_if_due(self, now: int) -> list[IntervalEffect]:
        """Flush rows if they are due. No commit is in flight."""
        return self.rows.capture(now, self.base_waits)

    def _base_due(self) -> bool:
        settings, journal = self._settings, self._journal
        if journal.needs_base(settings.checkpoint_entries, settings.checkpoint_bytes):
            return True
        near = journal.above >= settings.checkpoint_entries // 16 and self.spilling.overflowing
        return near and journal.may_write_base()

    @property
    def base_waits(self) -> bool:
        """Whether a captured base waits for rows."""
        return self._journal.base_waits(self.rows.upto)

    def _write_base(self) -> WriteParts:
        return write_base(self._state, self.spilling)

    def parts_written(self, number: int) -> None:
        """Parts are acknowledged: those of a base, or copies of parents' parts."""
        self.parents.copied(number)
        self._journal.parts_written(number)

    def base_named(self) -> None:
        """The append that names a base is committed."""
        self.spilling.named()
        self.parents.base_named()
        self._requested()

    def recovered(self, now: int) -> None:
        """The state has been rebuilt from the journal. Its rows are behind and will be flushed."""
        self.parents.recovered()
        self._requested()
        # The parents' rows are behind too, and are older than the truncation point.
        self.rows.recovered(now, -1 if self.parents.need is ParentNeed.DATA else self._journal.truncation_point)

    # Releasing the interval.

    def ask(self, request: Any) -> None:
        """Register a request to make the journal short. ``ReleasePrepared`` answers it."""
        self._requests.append(request)
        self._rounds = _MAX_ROUNDS
        self._requested()

    @property
    def wants_append(self) -> bool:
        """Whether an append is needed only to name a base."""
        return self.pressing and self._journal.wants_append(self.rows.upto)

    def press(self, now: int) -> list[IntervalEffect]:
        """Write what can be written while no commit is in flight, and answer requests that are complete."""
        out = self._answers()
        if not self.pressing:
            return out
        if self._journal.may_write_base() and self._base_pressing():
            out.append(self._write_base())
        if self.base_waits:
            out += self.rows.capture(now, True)
        return out

    def _base_pressing(self) -> bool:
        if self.parents.need is ParentNeed.DATA or (
            self.parents.need is ParentNeed.SEQUENCES and not self._outbox.inherited
        ):
            return True
        if self._requests and self._rounds:
            self._rounds -= 1
            return True
        return False

    def _answers(self) -> list[IntervalEffect]:
        if not self._requests:
            return []
        journal = self._journal
        short = journal.above <= _SHORT_ENTRIES and journal.bytes <= _SHORT_BYTES
        short = short and self.parents.need is not ParentNeed.DATA
        if not short and (self._rounds or not journal.base_at_rest):
            return []
        requests, self._requests = self._requests, []
        self._requested()
        return [ReleasePrepared(request, journal.above, journal.committed) for request in requests]
