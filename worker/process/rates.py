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
        self._seen: deque[tuple[float, int, int]] = deque()
        """Of each look: its time, when the newest record had come, and the number of received records."""

    def per_second(self, now: float, came_until: int, received: int) -> float:
        """The rate until now. ``came_until``: when the newest of the received records came, in microseconds."""
        seen = self._seen
        if not received or (seen and now - seen[-1][0] > _ARRIVAL_SECONDS):
            seen.clear()  # nothing is known of the time before
        if not received:
            return 0.0
        while len(seen) > 1 and seen[1][0] <= now - _ARRIVAL_SECONDS:
            seen.popleft()
        if not seen or now - seen[-1][0] >= _ARRIVAL_EVERY:
            seen.append((now, came_until, received))
        looked, before, base = seen[0]
        took = (came_until - before) / 1e6 or now - looked
        return (received - base) / took if took > 0 else 0.0
