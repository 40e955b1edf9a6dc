"""Whether the work that waits in an interval becomes less, from its owner's load reports. Pure.

The number of records that wait says little, because senders deliver in bursts, and keep a part themselves. So what
comes in a second is compared with what is taken.

An owner of an earlier version does not say how many come. It takes its records in the order in which they came, so the
wait of the oldest one grows by ``1 - taken / come`` in a second: by 0.13 s, if 15 come and 13 are taken.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from millwheel.model.time import Timestamp, seconds

__all__ = ["SOON_SECONDS", "TRACKED_SECONDS", "Pace", "Trend", "time_left"]

TRACKED_SECONDS: Final = 30.0
"""Work that has waited for less is no backlog. No history of it is kept, because there may be very many intervals."""
SOON_SECONDS: Final = 3600.0
"""A backlog that takes longer to catch up may need an action: about as many records come as are taken."""
_WINDOW: Final = seconds(60)
_EVERY: Final = seconds(10)
_SHORTEST: Final = seconds(20)
"""A trend looks back so far, at reports so far apart. One over a shorter time is not worth a judgement."""
_LEAST: Final = 0.02
"""In seconds per second, or as a share of what is taken. Less is no progress: it would take an hour for each minute."""
_MOST: Final = 0.9
"""A wait that grows by more is that of one record, which stays. It says nothing of how many come."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What comes and goes in an interval. ``growth``: of the oldest work's wait, in seconds per second.

    ``arriving``: how many records come in a second, if the owner says so. ``queued``: how many wait there, and
    ``fewer``: by how many fewer than when the trend began.
    """

    waited: float
    taken: float
    growth: float
    arriving: float | None = None
    queued: int = 0
    fewer: int = 0

    @property
    def come(self) -> float | None:
        """How many records come in a second. None: it cannot be said."""
        if self.arriving is not None:
            return self.arriving
        return self.taken / (1.0 - self.growth) if self.growth <= _MOST else None

    @property
    def left(self) -> float | None:
        """In how many seconds the interval catches up. None: it does not, or this cannot be said.

        It can be said only if fewer come than are taken, and less waits than before.
        """
        falls = self.growth < -_LEAST
        if self.arriving is None:
            return self.waited / -self.growth if falls else None
        more = self.taken - self.arriving
        if more <= _LEAST * self.taken or not (falls or self.fewer > 0):
            return None
        # While the owner's queue is full, its senders keep the rest. All that came since the oldest record waits.
        return max(self.queued, self.waited * self.arriving) / more

    @property
    def grows(self) -> bool:
        """Whether the interval falls further behind: no fewer come than are taken, and the oldest work waits longer.

        A full owner gets about as many as it takes, and its senders keep the others.
        """
        if self.come is None or self.growth <= _LEAST:
            return False
        return self.come > self.taken * (1 - _LEAST if self.growth <= _MOST else 1 + _LEAST)


class Trend:
    """The wait of an interval's oldest work over the last minute, at one owner."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: list[tuple[Timestamp, float, float, int]] = []
        """Of each report: its time, the wait in seconds, the records taken in a second, and those that wait."""

    def add(self, at: Timestamp, waited: float, rate: float, queued: int = 0) -> None:
        """Add a report. Reports close to the one before are left out."""
        seen = self._seen
        if seen and at - seen[-1][0] < _EVERY:
            return
        seen.append((at, waited, rate, queued))
        while len(seen) > 1 and at - seen[1][0] >= _WINDOW:
            del seen[0]

    def pace(self, arriving: float | None = None, queued: int = 0) -> Pace | None:
        """Return what comes and goes. None: the reports do not go back far enough.

        ``arriving`` and ``queued`` are of the last report: see :class:`Pace`.
        """
        if not self._seen or (took := self._seen[-1][0] - self._seen[0][0]) < _SHORTEST:
            return None
        taken = sum((other[0] - one[0]) * other[2] for one, other in pairwise(self._seen)) / took
        _, before, _, base = self._seen[0]
        waited = self._seen[-1][1]
        return Pace(waited, taken, (waited - before) * 1e6 / took, arriving, queued, base - queued)


def time_left(paces: Collection[Pace]) -> float | None:
    """In how many seconds several intervals have caught up. None: of at least one of them, this cannot be said."""
    found = [one.left for one in paces]
    known = [one for one in found if one is not None]
    return max(known) if len(known) == len(found) and known else None
