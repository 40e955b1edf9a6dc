"""Rates over the last seconds, from totals that only grow."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["WindowRate"]

MAX_WINDOW_SECONDS: Final = 10.0
_MIN_WINDOW_SECONDS: Final = 0.5
"""The longest and shortest period of a rate, in seconds."""


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
