"""Whether the work that waits in an interval becomes less, from its owner's load reports. Pure.

The number of records that wait says little, because senders deliver in bursts, and keep a part themselves. So what
comes in a second is compared with what is taken.

An owner of an earlier version does not say how many come. It takes its records in the order in which they came, so the
wait of the oldest one grows by ``1 - taken / come`` in a second: by 0.13 s, if 15 come and 13 are taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from millwheel.model.time import Timestamp, seconds

__all__ = ["TRACKED_SECONDS", "Pace", "Trend", "time_left"]

TRACKED_SECONDS: Final = 5.0
"""Work that has waited for less is no backlog. No history of it is kept, because there may be very many intervals."""
_WINDOW: Final = seconds(60)
_EVERY: Final = seconds(5)
_SHORTEST: Final = seconds(20)
"""A trend looks back so far, at reports so far apart. One over a shorter time is not worth a judgement."""
_LEAST: Final = 0.02
"""In seconds per second, or as a share of what is taken. Less is no progress: it would take an hour for each minute."""
_MOST: Final = 0.9
"""A wait that grows by more is that of one record, which stays. It says nothing of how many come."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What comes and goes in an interval. ``growth``: of the oldest work's wait, in seconds per second.

    ``arriving``: how many records come in a second, if the owner says so. ``queued``: how many wait.
    """

    waited: float
    taken: float
    growth: float
    arriving: float | None = None
    queued: int = 0

    @property
    def come(self) -> float | None:
        """How many records come in a second. None: it cannot be said."""
        if self.arriving is not None:
            return self.arriving
        return self.taken / (1.0 - self.growth) if self.growth <= _MOST else None

    @property
    def left(self) -> float | None:
        """In how many seconds the interval catches up. None: it does not."""
        if self.arriving is None:
            return self.waited / -self.growth if self.growth < -_LEAST else None
        more = self.taken - self.arriving
        return self.queued / more if more > _LEAST * self.taken and self.growth <= _MOST else None


class Trend:
    """The wait of an interval's oldest work over the last minute, at one owner."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: deque[tuple[Timestamp, float, float]] = deque()
        """Of each report: its time, the wait in seconds, and the records taken in a second."""

    def add(self, at: Timestamp, waited: float, rate: float) -> None:
        """Add a report. Reports close to the one before are left out."""
        seen = self._seen
        if seen and at - seen[-1][0] < _EVERY:
            return
        seen.append((at, waited, rate))
        while len(seen) > 1 and at - seen[1][0] >= _WINDOW:
            seen.popleft()

    def pace(self, arriving: float | None = None, queued: int = 0) -> Pace | None:
        """Return what comes and goes. None: the reports do not go back far enough.

        ``arriving`` and ``queued`` are of the last report: see :class:`Pace`.
        """
        if not self._seen or (took := self._seen[-1][0] - self._seen[0][0]) < _SHORTEST:
            return None
        taken = sum((other[0] - one[0]) * other[2] for one, other in pairwise(self._seen)) / took
        waited = self._seen[-1][1]
        return Pace(waited, taken, (waited - self._seen[0][1]) * 1e6 / took, arriving, queued)


def time_left(paces: Collection[Pace]) -> float | None:
    """In how many seconds several intervals have caught up. None: at least one of them does not."""
    found = [one.left for one in paces]
    known = [one for one in found if one is not None]
    return max(known) if len(known) == len(found) and known else None
