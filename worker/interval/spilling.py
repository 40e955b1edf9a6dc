"""Which timers stay in memory, and which go to the store and come back (design §5; section 4.6; G6, G8, G13).

With each base, timers beyond a number go to the store, the farthest of their domain. They leave memory once
the base that names their part is committed, and come back, a part at a time, when they may be due soon, when
memory has few left, when too many of them are void, or when the hold of one that is void holds the output watermark.

Until a part whose first timer is due has been read, no later timer of its domain fires (``due_until``), and, in
event time, no record is run (``behind``): timers fire before the records that follow, and in increasing time (G5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from millwheel.sdk.context import TimerSetting
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.interval.entry import TimerRow, decode_part
from millwheel.worker.interval.far import FarPart, index_of
from millwheel.worker.interval.parts import in_parts
from millwheel.worker.interval.state import IntervalState, effective_hold
from millwheel.worker.messages import Instruction, PartsMissing, PartsRead, ReadSegments

__all__ = ["Spilling"]

_Captured = tuple[FarPart, Sequence[TimerRow]]


class Spilling:
    """Decides about the far timers of one interval."""

    def __init__(self, state: IntervalState) -> None:
        self.state = state
        self._captured: list[_Captured] = []
        """Parts of the base on its way."""
        self._leaving: list[_Captured] = []
        """Parts of the committed base, whose timers are to leave memory."""
        self._reading: dict[PartId, list[TimerRow] | None] = {}
        """Parts that are being read, or, with their rows, wait for the commit in flight."""

    # Out.

    @property
    def overflowing(self) -> bool:
        """Whether memory has so many timers that a base should be written for it."""
        kept = self.state.settings.timers_kept
        return any(len(table) > 2 * kept for table in self.state.timers.values())

    def capture(self) -> tuple[list[TimerRow], dict[PartId, bytes], list[PartId]]:
        """For a base: the timers that stay in memory, the new far parts, and the older ones that stay valid."""
        state = self.state
        kept = [part for rows in state.far.parts for part in (rows, index_of(rows))]
        near: list[TimerRow] = []
        blobs: dict[PartId, bytes] = {}
        self._captured, self._leaving = [], []
        numbers = count()
        for wall, table in state.timers.items():
            rows = [(key, wall, tag, *setting) for key, tag, setting in table.items()]
            most = state.settings.timer_part
            if (excess := (len(rows) - state.settings.timers_kept) // most * most) > 0:
                # What is due is of use in memory alone.
                due = self._due_first(rows, wall)
                cut = max(len(rows) - excess, due)
                for part_rows, blob in in_parts(rows[cut:], most):
                    part = self._part(next(numbers), part_rows)
                    self._captured.append((part, part_rows))
                    blobs[part.rows], blobs[index_of(part.rows)] = blob, part.encode()
                del rows[cut:]
            near += rows
        return near, blobs, kept

    def _due_first(self, rows: list[TimerRow], wall: bool) -> int:
        """Sort the rows of one domain: those that are due, which are counted, and then the others; each in time."""
        state = self.state
        if not wall and state.floors:
            shown = state.watermark_of
            rows.sort(key=lambda row: (row[3] > shown(row[0]), row[3]))
            return sum(row[3] <= shown(row[0]) for row in rows)
        limit = state.wall if wall else state.watermark
        rows.sort(key=lambda row: row[3])
        return sum(row[3] <= limit for row in rows)

    def _part(self, number: int, rows: Sequence[TimerRow]) -> FarPart:
        holds = (effective_hold(TimerSetting._make(row[3:]), row[1]) for row in rows)
        hold = min((hold for hold in holds if hold is not None), default=None)
        return FarPart.of(number, self.state.config.sequencer, self.state.committed, rows, hold)

    def named(self) -> None:
        """The base that was captured is committed."""
        self._leaving, self._captured = self._captured, []

    @property
    def wants_stillness(self) -> bool:
        """Whether there are timers to let go of, or to take in, once no commit is in flight."""
        return bool(self._leaving) or self._has_read

    @property
    def _has_read(self) -> bool:
        return any(read is not None for read in self._reading.values())

    @property
    def may_take_in(self) -> bool:
        """Whether parts have been read, and no commit is in flight or in line."""
        return self._has_read and self.state.sealed == self.state.committed

    def let_go(self) -> None:
        """Have the timers of a stored part leave memory; call it when a commit is acknowledged and none is in flight.

        One part at a time, for it takes some milliseconds. What has changed since the capture is void in the part.
        """
        if not self._leaving:
            return
        part, rows = self._leaving.pop(0)
        state = self.state
        if part.first <= (state.wall if part.wall else state.watermark):
            # Some are about to fire. The part is not relied on, and goes with the next base.
            return
        table = state.timers[part.wall]
        state.far.add(part)
        part.hold = None
        for key, wall, tag, _, _, _, origin in rows:
            setting = table.get(key, tag)
            if setting is None or setting.origin != origin:
                state.far.void(key, wall, tag, origin + 1)
                continue
            table.cancel(key, tag)
            if (hold := effective_hold(setting, wall)) is not None:
                state.hold_times.stated.remove(hold)
                part.hold = hold if part.hold is None else min(part.hold, hold)
        if part.hold is not None:
            state.hold_times.stated.add(part.hold)

    # In.

    def read(self, event: PartsRead) -> None:
        """Parts have been read."""
        for part, blob in event.blobs.items():
            where = f"journal {self.state.config.journal}, base part {part.name}"
            self._reading[part] = decode_part(blob, list[TimerRow], where)

    def missing(self, event: PartsMissing) -> None:
        """A part is gone or damaged: CorruptValueError, since its timers are lost."""
        raise CorruptValueError(event.where, event.why)

    def pump(self) -> list[Instruction]:
        """Take in what has been read, if no commit is in flight; returns what to read."""
        state = self.state
        if self._reading:
            if state.sealed != state.committed:
                return []
            for rows in [rows for rows, read in self._reading.items() if read is not None]:
                self._take_in(rows)
        return self.ask()

    def ask(self) -> list[Instruction]:
        """What to read, unless something is being read."""
        if self._reading:
            return []
        wanted = self._wanted()
        if wanted is None:
            return []
        self._reading[wanted.rows] = None
        return [ReadSegments(self.state.config.journal, [wanted.rows])]

    def _take_in(self, name: PartId) -> None:
        state = self.state
        read, part = self._reading.pop(name), state.far.parts[name]
        assert read is not None, "it has been read"
        rows = state.far.standing(read)
        state.far.remove(part)
        settings = [(row[0], row[2], TimerSetting._make(row[3:])) for row in rows]
        state.timers[part.wall].load(settings)
        holds: Iterable[Any] = (effective_hold(setting, part.wall) for _, _, setting in settings)
        state.hold_times.stated.add_all(hold for hold in holds if hold is not None)
        if part.hold is not None:
            state.hold_times.stated.remove(part.hold)

    def _wanted(self) -> FarPart | None:
        """The part that should be read next, if any."""
        far, kept = self.state.far, self.state.settings.timers_kept
        for wall in (False, True):
            first = far.first(wall)
            if first is not None and self._may_come(wall, first):
                return far.of_domain(wall)[0]
        binding = self.state.hold_times.min()
        if binding < self.state.watermark:
            for part in far.holding():
                if part.hold == binding and part.voids:
                    return part
        if far.void_count > kept // 2 + far.count // 8:
            return max(far.parts.values(), key=lambda part: len(part.voids))
        return None

    def _may_come(self, wall: bool, first: int) -> bool:
        state = self.state
        settings, table = state.settings, state.timers[wall]
        if len(table) < settings.timers_kept // 2:
            return True
        acted = state.wall if wall else state.watermark
        if first > acted + settings.timer_lead:
            return False
        if len(table) + settings.timer_part <= settings.timers_kept * 3 // 2:
            return True
        # Memory is full of timers: those that may fire go first.
        ready = table.next_time()
        return first <= acted and (ready is None or ready > first)
