"""Keeping the journal short: flushed state rows, base parts, and the truncation point.

Invariant: the truncation point moves only inside an append, to a commit n with two properties. (a) The rows
of all keys that changed up to n are acknowledged. (b) Base parts captured at n or later are acknowledged, and the same
append names them. An owner that stops in between leaves unnamed parts, and entries that the next takeover reads again.
It never leaves a truncation point without its base. Captures happen only while no sealed commit is in flight, so they
show committed state only.

To become independent of parents, rows and base are *pressed*: they are written at once. If no work causes an append, an
extra append names the base. The same happens before the interval moves to a successor (PrepareRelease).
"""

from __future__ import annotations

from typing import Any, Final

from millwheel.store.contract import PartId
from millwheel.worker.interval.base_parts import BaseParts
from millwheel.worker.interval.parents import Needs, ParentNeeds
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.spilling import Spilling
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.interval.state_rows import StateRows
from millwheel.worker.messages import (
    DeleteEntries,
    DeleteParts,
    IntervalEffect,
    ReleasePrepared,
    WriteParts,
)

__all__ = ["Checkpointer"]

_MAX_ROUNDS: Final = 3
"""Maximum bases that are written before a move while work continues."""
_SHORT_ENTRIES: Final = 64
_SHORT_BYTES: Final = 256 << 10
"""A journal with at most this much above its truncation point is short: some milliseconds to read."""


class Checkpointer:
    """Decides when rows and base parts are written, and how far the truncation point moves."""

    def __init__(self, state: IntervalState) -> None:
        self._setup: IntervalSetup = state
        self._outbox = state.outbox
        self._journal = state.journal
        self.spilling = Spilling(state)
        self.rows = StateRows(state)
        self._bases = BaseParts(state, self.spilling)
        self._number = 0
        self._parts: tuple[int, int, tuple[PartId, ...]] | None = None
        """The base parts in flight: their number, the commit that they show, their ids."""
        self._base: tuple[int, tuple[PartId, ...]] | None = None
        """The newest acknowledged base that no append has named."""
        self._named: tuple[int, tuple[PartId, ...]] | None = None
        """The base that the append in flight names."""
        self._collected: list[PartId] = []
        """Parts of collected id segments. They are deleted with the next base."""
        self.journal_bytes = 0
        """Approximate size of the entries above the truncation point."""
        self.parents = ParentNeeds(state)
        self._requests: list[Any] = []
        """Requests that wait for a short journal."""
        self._rounds = 0
        """Maximum bases still to write for these requests."""

    def after_commit(self, now: int) -> list[IntervalEffect]:
        """Capture what is due, after a commit is acknowledged and while none is in flight."""
        if self.spilling.leaving:
            self.spilling.release()
        # The base comes first, because it waits for rows of the same commit.
        return (self._write_base() if self._base_due() else []) + self.rows.capture(now, self._base_waits)

    def wants_stillness(self, now: int) -> bool:
        """Whether a capture or a load of timers is due that requires that no commit is in flight."""
        rows_due = self.rows.wants_capture(now, self._base_waits)
        return rows_due or self._base_due() or self.pressing or self.spilling.wants_stillness

    def next_alarm(self, now: int) -> int | None:
        """When rows must be flushed if no commit comes before."""
        return self.rows.next_alarm(now, self._base_waits)

    def idle(self, now: int) -> list[IntervalEffect]:
        """Flush rows if they are due. No commit is in flight."""
        return self.rows.capture(now, self._base_waits)

    @property
    def _base_waits(self) -> bool:
        """Whether a captured base waits for rows that changed before it."""
        shown = self._parts[1] if self._parts is not None else self._base[0] if self._base is not None else None
        return shown is not None and self.rows.upto < shown

    def _base_due(self) -> bool:
        if not self._may_write_base():
            return False
        settings, journal = self._setup.settings, self._journal
        above = journal.committed - journal.truncation_point
        return (
            above >= settings.checkpoint_entries
            or self.journal_bytes >= settings.checkpoint_bytes
            or (above >= settings.checkpoint_entries // 16 and self.spilling.overflowing)
        )

    def _may_write_base(self) -> bool:
        """Whether a base can be captured: none is in progress, and it would name parts of its own journal only."""
        on_its_way = self._parts is not None or self._base is not None or self._named is not None
        return not on_its_way and not self._journal.foreign

    def _write_base(self) -> list[IntervalEffect]:
        parts, kept, collected = self._bases.capture()
        self._collected += collected
        self._number += 1
        self._parts = (self._number, self._journal.committed, tuple(sorted([*parts, *kept])))
        self.journal_bytes = 0
        return [WriteParts(self._setup.config.journal, self._number, parts)]

    def parts_written(self, number: int) -> None:
        """Parts are acknowledged. If they are base parts, an append may name them."""
        self._collected += self.parents.copied(number)
        if self._parts is None or self._parts[0] != number:
            return
        _, commit, parts = self._parts
        self._parts = None
        self._base = (commit, parts)

    def truncation_and_parts(self) -> tuple[int, tuple[PartId, ...]]:
        """The truncation point and the base parts that the next append names."""
        self.rows.look()
        if self._base is not None and self._base[0] <= self.rows.upto:
            self._named, self._base = self._base, None
        if self._named is not None:
            return self._named
        return self._journal.truncation_point, self._journal.parts

    def truncation_committed(self) -> list[IntervalEffect]:
        """The append that named a base is committed. Returns the deletions of what is below the truncation point."""
        if self._named is None:
            return []
        gone = self._journal.truncate(*self._named, self._collected)
        self._collected = []
        self._named = None
        self.spilling.named()
        self.parents.base_named()
        journal = self._setup.config.journal
        effects: list[IntervalEffect] = [DeleteEntries(journal, self._journal.truncation_point + 1)]
        if gone:
            effects.append(DeleteParts(journal, gone))
        return effects

    def recovered(self, now: int, entry_bytes: int) -> None:
        """The state has been rebuilt from the journal. Its rows are behind and will be flushed."""
        self.journal_bytes = entry_bytes
        self.parents.recovered()
        # The parents' rows are behind too, and are older than the truncation point.
        self.rows.recovered(now, -1 if self.parents.needs is Needs.DATA else self._journal.truncation_point)

    # Releasing the interval.

    def ask(self, request: Any) -> None:
        """Register a request to make the journal short. ``ReleasePrepared`` answers it."""
        self._requests.append(request)
        self._rounds = _MAX_ROUNDS

    @property
    def pressing(self) -> bool:
        """Whether rows and base must be written as soon as possible."""
        return bool(self._requests) or self.parents.needs is not Needs.NOTHING

    @property
    def releasing(self) -> bool:
        """Whether a request waits and the child has no base yet. Then the base has priority over new work."""
        return bool(self._requests) and self.parents.needs is Needs.DATA

    @property
    def wants_append(self) -> bool:
        """Whether an append is needed only to name a base."""
        return self.pressing and self._base is not None and self._base[0] <= self.rows.upto

    def press(self, now: int) -> list[IntervalEffect]:
        """Write what can be written while no commit is in flight, and answer requests that are complete."""
        out = self._answers()
        if not self.pressing:
            return out
        if self._may_write_base() and self._base_pressing():
            out += self._write_base()
        if self._base_waits:
            out += self.rows.capture(now, True)
        return out

    def _base_pressing(self) -> bool:
        if self.parents.needs is Needs.DATA or (self.parents.needs is Needs.SEQUENCES and not self._outbox.inherited):
            return True
        if self._requests and self._rounds:
            self._rounds -= 1
            return True
        return False

    def _answers(self) -> list[IntervalEffect]:
        if not self._requests:
            return []
        above = self._journal.committed - self._journal.truncation_point
        short = above <= _SHORT_ENTRIES and self.journal_bytes <= _SHORT_BYTES and self.parents.needs is not Needs.DATA
        written = self._parts is None and self._base is None and self._named is None
        if not short and (self._rounds or not written):
            return []
        requests, self._requests = self._requests, []
        return [ReleasePrepared(request, above, self._journal.committed) for request in requests]
