"""Rates over the last seconds, from totals that only grow."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["ArrivalRate", "WindowRate"]

MAX_WINDOW_SECONDS: Final = 10.0
_MIN_WINDOW_SECONDS: Final = 0.5
"""The longest and shortest period of a rate, in seconds."""
_ARRIVAL_SECONDS: Final = 60.0
_ARRIVAL_EVERY: Final = 5.0
"""The period of a rate of arrivals, and the time between two of its values, in seconds."""


class WindowRate:
    """The growth rate of a total, from its value some seconds ago."""

    __slots__ = ("_seen",)

    def __init__(self, now: float, total: float) -> None:
        self._seen = deque([(now, total)])

    def rested(self, since: float, now: float) -> None:
        """The total has not grown from ``since`` until the next call, which is that of ``now``."""
        self._seen = deque([(max(since, now - MAX_WINDOW_SECONDS), self._seen[-1][1])])

    def per_second(self, now: float, total: float) -> float:
        """The rate until now. 0 at the time of the first value."""
        seen = self._seen
        while len(seen) > 1 and seen[1][0] <= now - MAX_WINDOW_SECONDS:
            seen.popleft()
        before, base = seen[0]
        if now - seen[-1][0] >= _MIN_WINDOW_SECONDS:
            seen.append((now, total))
        return max(0.0, (total - base) / (now - before)) if now > before else 0.0


class ArrivalRate:
    """How many records come to the senders in a second, as the receiver knows it.

    Senders deliver in bursts, and a new owner gets everything at once. So the rate counts the time between the arrivals
    at the senders, and not the time between the deliveries.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: list[tuple[float, int, int]] = []
        """Of each look: its time, until when what came was known, and the number of received records."""

    def forget(self) -> None:
        """Forget the looks: nothing comes, and an idle interval is to take little memory."""
        self._seen.clear()

    def per_second(self, now: float, came_until: int, received: int) -> float | None:
        """The rate until now. None: it needs two looks.

        ``came_until``: until when the received records are all that came to the senders, in microseconds.
        """
        seen = self._seen
        if not received or (seen and now - seen[-1][0] > _ARRIVAL_SECONDS):
            seen.clear()  # nothing is known of the time before
        if not received:
            return None
        while len(seen) > 1 and seen[1][0] <= now - _ARRIVAL_SECONDS:
            del seen[0]
        if not seen or now - seen[-1][0] >= _ARRIVAL_EVERY:
            seen.append((now, came_until, received))
        looked, before, base = seen[0]
        # What came at one moment, or from several senders, is over the time between the looks at least.
        took = max((came_until - before) / 1e6, now - looked)
        return (received - base) / took if took > 0 else None
