"""The holds of one interval, and the output watermark that they allow (sections 4.5, 5.2, 7.2; G7, G8).

The output watermark stands at the oldest unfinished work: uncommitted records, productions without an ACK, timers, and
holds. Each hold is stated or passing:

- A hold is *stated* while a hook may still end it. It belongs to a key, to a timer that is set, or to a part of spilled
  timers. Each of these owners states its hold when it begins, and names the passing hold that replaces it when it ends.
- A hold is *passing* when its end requires no other hook: the commit that ends it is under way, or an ACK must be
  journaled. Or a due timer is blocked with its key, or in an asynchronous hook. A passing hold is one ``Hold``. It
  has one owner, which releases it or moves it into another one.

The distinction matters while the outbox is full. Due timers may have to fire to end a stated hold (G8). They need not
fire for a passing one (G13).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from millwheel.model.time import LAST_TIMESTAMP, MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.model.watermarks import MinTracker
from millwheel.rpc.v1.watermark_pb2 import (
    HOLD_KIND_INPUT,
    HOLD_KIND_PRODUCTION,
    HOLD_KIND_RECORD,
    HOLD_KIND_STATE,
    HOLD_KIND_TIMER,
    HoldKind,
)

__all__ = ["Hold", "Holds"]


class Hold:
    """A passing hold: it covers some timestamps and keeps the output watermark at the least of them, ``at``.

    What one commit or one blocked key holds ends together. So one timestamp is enough for it, with the number of
    timestamps that it covers. A hold that covers nothing costs nothing.

    Invariant: a hold ends exactly once, by ``release`` or because another hold took it over. Afterwards every use is an
    error. A hold that its owner forgets never ends: ``check_holds`` (``invariants.py``) finds it.
    """

    __slots__ = ("_holds", "at", "count")

    def __init__(self, holds: Holds) -> None:
        self._holds: Holds | None = holds
        self.at: int = MAX_TIMESTAMP
        self.count = 0

    def cover(self, at: int, count: int = 1) -> None:
        """Keep the output watermark at ``at`` or before, too.

        The end of time counts as one step before it. Otherwise the end could be reported before its work is done.
        """
        holds = self._holds
        if holds is None:
            raise RuntimeError(f"a hold that has ended cannot cover {at}")
        if at > LAST_TIMESTAMP:
            at = LAST_TIMESTAMP
        if at < self.at:
            holds._lower(self, at)
        self.count += count

    def take(self, other: Hold) -> None:
        """Cover what ``other`` covers. ``other`` ends."""
        if other.count:
            self.cover(other.at, other.count)
        other.release()

    def release(self) -> None:
        """End the hold.

        Raises:
            RuntimeError: It has ended already.
        """
        holds, self._holds = self._holds, None
        if holds is None:
            raise RuntimeError(f"a hold at {self.at} ends twice")
        if self.count:
            holds._drop(self)


class Holds:
    """The holds of one interval, and its output watermark.

    ``records`` and ``productions`` have the timestamps of uncommitted records and of productions without an ACK. Their
    owners are the intake and the outbox.
    """

    __slots__ = ("_open", "_passing", "_productions", "_records", "_stated", "of_keys", "output")

    def __init__(self, records: MinTracker, productions: MinTracker) -> None:
        self._records = records
        self._productions = productions
        self.of_keys: dict[bytes, int] = {}
        """The stated hold of each key that has one. Only ``set_of_key`` changes it."""
        self._stated = MinTracker()
        self._passing = MinTracker()
        self._open: dict[Hold, None] = {}
        """The passing holds that cover something."""
        self.output: int = MIN_TIMESTAMP
        """The output watermark last reported. It is monotone."""

    def __len__(self) -> int:
        """The number of stated holds, and of passing holds that cover something."""
        return len(self._stated) + len(self._open)

    def min(self) -> int:
        """The lowest hold. MAX_TIMESTAMP: there is none."""
        return min(self._stated.min(), self._passing.min())

    def min_stated(self) -> int:
        """The lowest stated hold. MAX_TIMESTAMP: there is none."""
        return self._stated.min()

    def items(self) -> Iterator[tuple[int, int]]:
        """(timestamp, number of holds). A timestamp may appear several times."""
        return chain(self._stated.items(), ((hold.at, hold.count) for hold in self._open))

    # Stated holds. Their owners call these: the timer tables, the spilled timers, and ``set_of_key``.

    def begin(self, at: int) -> None:
        """A stated hold begins."""
        self._stated.add(at)

    def end(self, at: int, ending: Hold | None) -> None:
        """A stated hold ends.

        Args:
            at: Its timestamp.
            ending: The hold of the commit that ends it, which covers it until it is in the journal. A takeover before
                that finds the stated hold unchanged. None: nothing has to be journaled.

        Raises:
            KeyError: There is no stated hold at ``at``.
        """
        self._stated.remove(at)
        if ending is not None:
            ending.cover(at)

    def set_of_key(self, key: bytes, at: int | None, ending: Hold | None) -> None:
        """Set the key's stated hold, or end it (``at`` None). ``ending`` covers the previous one, as in ``end``."""
        previous = self.of_keys.pop(key, None)
        if at is not None:
            self.of_keys[key] = at
            self._stated.add(at)
        if previous is not None:
            self.end(previous, ending)

    # Passing holds.

    def open(self, at: int | None = None) -> Hold:
        """A new passing hold, which covers ``at``. None: it covers nothing yet."""
        hold = Hold(self)
        if at is not None:
            hold.cover(at)
        return hold

    def _lower(self, hold: Hold, at: int) -> None:
        """``hold`` stands at ``at`` from here on."""
        if hold.count:
            self._passing.remove(hold.at)
        else:
            self._open[hold] = None
        self._passing.add(at)
        hold.at = at

    def _drop(self, hold: Hold) -> None:
        self._passing.remove(hold.at)
        del self._open[hold]

    # The output watermark.

    def lowest(self, watermark: int, *times: int | None) -> tuple[int, HoldKind.ValueType]:
        """The least timestamp of unfinished work, and the kind of that work (section 4.5).

        Args:
            watermark: The input watermark in use.
            times: The times of the first event-time timers: in memory, and in the store. None: there are none.
        """
        output, kind = watermark, HOLD_KIND_INPUT
        if (first := self._records.min()) <= output:
            output, kind = first, HOLD_KIND_RECORD
        if (first := self._productions.min()) < output:
            output, kind = first, HOLD_KIND_PRODUCTION
        for time in times:
            # A timer at the end of time holds one step before it, as ``Hold.cover`` says.
            if time is not None and (first := min(time, LAST_TIMESTAMP)) < output:
                output, kind = first, HOLD_KIND_TIMER
        if (first := self.min()) < output:
            output, kind = first, HOLD_KIND_STATE
        return output, kind

    def raise_output(self, to: int) -> int:
        """Raise the output watermark to ``to``, unless it is higher. Returns it. It never goes back (G7)."""
        self.output = max(to, self.output)
        return self.output
