"""Moves timers between memory and the store (section 4.6; G6, G8, G13).

With each base, timers above a number are written to the store, the farthest of their domain. They leave memory when the
base that names their part is committed. Parts come back one at a time, for one of these reasons:

- their timers may be due soon,
- memory has few timers left,
- too many of their timers are deleted,
- a timer that may be deleted holds the output watermark.

Invariant: until a part whose first timer is due has been loaded, no later timer of its domain fires (``due_until``). In
event time no record runs either (``behind``). So timers fire before the records that follow, in increasing time (G5).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NoReturn

from msgspec.structs import astuple

from millwheel.model.time import TimeDomain
from millwheel.sdk.effects import TimerSetting
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.interval.commits.parts import in_parts
from millwheel.worker.interval.entry import TimerRow, decode_part
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.spilled_timers import SpilledPart, index_of
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.interval.timers import effective_hold
from millwheel.worker.messages import IntervalEffect, PartsMissing, PartsRead, ReadSegments

__all__ = ["Spilling"]

_Captured = tuple[SpilledPart, Sequence[TimerRow]]


class Spilling:
    """Spills the timers of one interval and loads them back."""

    def __init__(self, state: IntervalState) -> None:
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._timers = state.timers
        self._holds = state.holds
        self._journal = state.journal
        self._captured: list[_Captured] = []
        """Parts of the base that is being written."""
        self.outgoing: list[_Captured] = []
        """Parts of the committed base whose timers must still leave memory."""
        self._reading: dict[PartId, list[TimerRow] | None] = {}
        """Parts that are being read (None), or that wait with their rows until no commit is in flight."""

    # Spilling.

    @property
    def overflowing(self) -> bool:
        """Whether memory has so many timers that a base should be written to spill some."""
        kept = self._setup.settings.timers_kept
        return any(len(table) > 2 * kept for table in self._timers.tables.values())

    def capture(self) -> tuple[list[TimerRow], dict[PartId, bytes], list[PartId]]:
        """For a base: the timers that stay in memory, the new spilled parts, and the older ones that stay valid."""
        kept = [part for rows in self._timers.spilled.parts for part in (rows, index_of(rows))]
        near: list[TimerRow] = []
        blobs: dict[PartId, bytes] = {}
        self._captured, self.outgoing = [], []
        numbers = count()
        for domain, table in self._timers.tables.items():
            processing = domain is TimeDomain.PROCESSING_TIME
            rows = [(key, processing, tag, *astuple(setting)) for key, tag, setting in table.items()]
            most = self._setup.settings.timer_part
            if (excess := (len(rows) - self._setup.settings.timers_kept) // most * most) > 0:
                # Due timers are needed in memory.
                due = self._due_first(rows, domain)
                cut = max(len(rows) - excess, due)
                for part_rows, blob in in_parts(rows[cut:], most):
                    part = self._part(next(numbers), part_rows)
                    self._captured.append((part, part_rows))
                    blobs[part.rows], blobs[index_of(part.rows)] = blob, part.encode()
                del rows[cut:]
            near += rows
        return near, blobs, kept

    def _due_first(self, rows: list[TimerRow], domain: TimeDomain) -> int:
        """Sort the rows of one domain: the due timers first, then the others, each in increasing time.

        Returns the number of due ones.
        """
        if domain is TimeDomain.EVENT_TIME and self._clocks.bounded:
            shown = self._clocks.watermark_of
            rows.sort(key=lambda row: (row[3] > shown(row[0]), row[3]))
            return sum(row[3] <= shown(row[0]) for row in rows)
        limit = self._clocks.time_in(domain)
        rows.sort(key=lambda row: row[3])
        return sum(row[3] <= limit for row in rows)

    def _part(self, number: int, rows: Sequence[TimerRow]) -> SpilledPart:
        holds = (effective_hold(TimerSetting(*row[3:]), TimeDomain(row[1])) for row in rows)
        hold = min((hold for hold in holds if hold is not None), default=None)
        return SpilledPart.from_rows(number, self._setup.config.sequencer, self._journal.committed, rows, hold)

    def named(self) -> None:
        """The captured base is committed."""
        self.outgoing, self._captured = self._captured, []

    @property
    def wants_all_committed(self) -> bool:
        """Whether timers must leave memory or be loaded, once no commit is in flight."""
        return bool(self.outgoing) or self._has_read

    @property
    def _has_read(self) -> bool:
        return any(read is not None for read in self._reading.values())

    @property
    def may_take_in(self) -> bool:
        """Whether parts have been read and no commit is in flight or queued."""
        return self._has_read and self._journal.all_committed

    def release(self) -> None:
        """Remove one stored part's timers from memory. Call it after a commit, while no other commit is in flight.

        It removes one part at a time, because each takes some milliseconds. Timers that changed since the capture get a
        tombstone for their copy in the part.
        """
        part, rows = self.outgoing.pop(0)
        if part.first <= (self._clocks.time_in(part.domain)):
            # Some timers are about to fire. The part is not used, and the next base no longer names it.
            return
        table = self._timers.tables[part.domain]
        changed: list[TimerRow] = []
        holds: list[int] = []
        for row in rows:
            setting = table.get(row[0], row[2])
            if setting is None or setting.set_at_position != row[6]:
                changed.append(row)
            elif (hold := table.spill(row[0], row[2])) is not None:
                holds.append(hold)
        part.hold = min(holds, default=None)
        self._timers.spilled.add(part)
        for key, _, tag, _, _, _, set_at_position in changed:
            self._timers.spilled.void(key, part.domain, tag, set_at_position + 1)

    # Loading.

    def read(self, event: PartsRead) -> None:
        """Keep the rows of parts that have been read."""
        for part, blob in event.blobs.items():
            where = f"journal {self._setup.config.journal}, base part {part.name}"
            self._reading[part] = decode_part(blob, list[TimerRow], where)

    def raise_missing(self, event: PartsMissing) -> NoReturn:
        """Raise CorruptValueError: a part is missing or damaged, so its timers are lost."""
        raise CorruptValueError(event.where, event.why)

    def pump(self) -> list[IntervalEffect]:
        """Load the parts that have been read, if no commit is in flight. Returns what to read next."""
        if self._reading:
            if not self._journal.all_committed:
                return []
            for rows in [rows for rows, read in self._reading.items() if read is not None]:
                self._take_in(rows)
        return self.ask()

    def ask(self) -> list[IntervalEffect]:
        """What to read next. Empty while a read is in progress."""
        if self._reading:
            return []
        wanted = self._wanted()
        if wanted is None:
            return []
        self._reading[wanted.rows] = None
        return [ReadSegments(self._setup.config.journal, [wanted.rows])]

    def _take_in(self, name: PartId) -> None:
        read, part = self._reading.pop(name), self._timers.spilled.parts[name]
        assert read is not None, "it has been read"
        rows = self._timers.spilled.current_rows(read)
        self._timers.spilled.remove(part)
        self._timers.tables[part.domain].load((row[0], row[2], TimerSetting(*row[3:])) for row in rows)

    def _wanted(self) -> SpilledPart | None:
        """The part to read next, if any."""
        spilled, kept = self._timers.spilled, self._setup.settings.timers_kept
        for domain in TimeDomain:
            first = spilled.first[domain]
            if first is not None and self._may_come(domain, first):
                return spilled.of_domain(domain)[0]
        binding = self._holds.min()
        if binding < self._clocks.watermark:
            for part in spilled.holding():
                if part.hold == binding and part.voids:
                    return part
        if spilled.void_count > kept // 2 + spilled.count // 8:
            return max(spilled.parts.values(), key=lambda part: len(part.voids))
        return None

    def _may_come(self, domain: TimeDomain, first: int) -> bool:
        settings, table = self._setup.settings, self._timers.tables[domain]
        if len(table) < settings.timers_kept // 2:
            return True
        acted = self._clocks.time_in(domain)
        if first > acted + settings.timer_lead:
            return False
        if len(table) + settings.timer_part <= settings.timers_kept * 3 // 2:
            return True
        # Memory is full of timers, so timers that may fire now go first.
        ready = table.first_time
        return first <= acted and (ready is None or ready > first)
