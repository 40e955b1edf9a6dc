"""The timestamps at which an interval holds its output watermark, besides pending work (section 4.5; G7)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from millwheel.model.watermarks import MinTracker

__all__ = ["HoldTimes"]


class HoldTimes:
    """The holds of one interval, as a multiset.

    Invariant: each hold is stated or passing. A hold is *stated* while a hook may still end it: it belongs to a key, or
    to a timer that is set. A hold is *passing* when its end requires no other hook, for one of these reasons:

    - the commit that ends it is under way,
    - a due timer is blocked with its key,
    - an ACK must be journaled.

    The distinction matters while the outbox is full. Due timers may have to fire to end a stated hold (G8). They need
    not fire for a passing one (G13).
    """

    __slots__ = ("passing", "stated")

    def __init__(self) -> None:
        self.stated = MinTracker()
        self.passing = MinTracker()

    def __len__(self) -> int:
        """The number of holds."""
        return len(self.stated) + len(self.passing)

    def min(self) -> int:
        """The lowest hold. MAX_TIMESTAMP: there is none."""
        return min(self.stated.min(), self.passing.min())

    def items(self) -> Iterator[tuple[int, int]]:
        """(timestamp, number of holds). A timestamp may appear twice."""
        return chain(self.stated.items(), self.passing.items())

    def end(self, at: int) -> None:
        """A sealed commit ends a stated hold, which is passing until that commit is in the journal."""
        self.stated.remove(at)
        self.passing.add(at)
