"""The holds of one interval (sections 4.5, 5.2; G7, G8).

The output watermark stays at or below the lowest hold (``OutputWatermark``, ``clocks.py``). Each hold is stated or
passing:

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

from millwheel.model.time import LAST_TIMESTAMP, MAX_TIMESTAMP
from millwheel.model.watermarks import MinTracker

__all__ = ["Hold", "Holds", "joined"]


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


def joined(hold: Hold | None, other: Hold) -> Hold:
    """One hold with what both cover. None: there is only the other."""
    if hold is None:
        return other
    hold.take(other)
    return hold


class Holds:
    """The holds of one interval."""

    __slots__ = ("_open", "of_keys", "passing", "stated")

    def __init__(self) -> None:
        self.of_keys: dict[bytes, int] = {}
        """The stated hold of each key that has one. Only ``set_of_key`` changes it."""
        self.stated = MinTracker()
        """The timestamps of the stated holds. Others read them only."""
        self.passing = MinTracker()
        """The timestamps of the passing holds. Others read them only."""
        self._open: dict[Hold, None] = {}
        """The passing holds that cover something."""

    def __len__(self) -> int:
        """The number of stated holds, and of passing holds that cover something."""
        return len(self.stated) + len(self._open)

    def min(self) -> int:
        """The lowest hold. MAX_TIMESTAMP: there is none."""
        return min(self.stated.min(), self.passing.min())

    def min_stated(self) -> int:
        """The lowest stated hold. MAX_TIMESTAMP: there is none."""
        return self.stated.min()

    def items(self) -> Iterator[tuple[int, int]]:
        """(timestamp, number of holds). A timestamp may appear several times."""
        return chain(self.stated.items(), ((hold.at, hold.count) for hold in self._open))

    # Stated holds. Their owners call these: the timer tables, the spilled timers, and ``set_of_key``.

    def begin(self, at: int) -> None:
        """A stated hold begins."""
        self.stated.add(at)

    def end(self, at: int, ending: Hold | None) -> None:
        """A stated hold ends.

        Args:
            at: Its timestamp.
            ending: The hold of the commit that ends it, which covers it until it is in the journal. A takeover before
                that finds the stated hold unchanged. None: nothing has to be journaled.

        Raises:
            KeyError: There is no stated hold at ``at``.
        """
        self.stated.remove(at)
        if ending is not None:
            ending.cover(at)

    def set_of_key(self, key: bytes, at: int | None, ending: Hold | None) -> None:
        """Set the key's stated hold, or end it (``at`` None). ``ending`` covers the previous one, as in ``end``."""
        previous = self.of_keys.pop(key, None)
        if at is not None:
            self.of_keys[key] = at
            self.stated.add(at)
        if previous is not None:
            self.end(previous, ending)

    # Passing holds.

    def open(self, at: int | None = None) -> Hold:
        """A new passing hold, which covers ``at``. None: it covers nothing yet."""
        hold = Hold(self)
        if at is not None:
            hold.cover(at)
        return hold

    def covering(self, hold: Hold | None, at: int) -> Hold:
        """``hold``, or a new one for None, which covers ``at`` too."""
        if hold is None:
            hold = Hold(self)
        hold.cover(at)
        return hold

    def _lower(self, hold: Hold, at: int) -> None:
        """``hold`` stands at ``at`` from here on."""
        if hold.count:
            self.passing.remove(hold.at)
        else:
            self._open[hold] = None
        self.passing.add(at)
        hold.at = at

    def _drop(self, hold: Hold) -> None:
        self.passing.remove(hold.at)
        del self._open[hold]
