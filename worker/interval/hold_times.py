"""At which timestamps an interval holds its output watermark, besides pending work (section 4.5; G7)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from millwheel.core.watermarks import MinTracker

__all__ = ["HoldTimes"]


class HoldTimes:
    """The holds of one interval, as a multiset.

    Invariant: a hold is *stated* as long as a hook may still end it: that of a key, or of a timer that is set. It is
    *passing* when no other hook has to run for its end: the commit that ends it is under way, a due timer is blocked
    with its key, or an ACK is to be journaled. The two are told apart as due timers may have to fire for the end of a
    stated hold, though the outbox is full (G8), and need not for a passing one (G13).
    """

    __slots__ = ("passing", "stated")

    def __init__(self) -> None:
        self.stated = MinTracker()
        self.passing = MinTracker()

    def __len__(self) -> int:
        """How many holds there are."""
        return len(self.stated) + len(self.passing)

    def min(self) -> int:
        """The lowest hold; MAX_TIMESTAMP if there is none."""
        return min(self.stated.min(), self.passing.min())

    def items(self) -> Iterator[tuple[int, int]]:
        """The timestamps of holds, each with how many holds it has; a timestamp may come twice."""
        return chain(self.stated.items(), self.passing.items())

    def end(self, at: int) -> None:
        """A sealed commit ends a stated hold. It passes when that commit is in the journal."""
        self.stated.remove(at)
        self.passing.add(at)
