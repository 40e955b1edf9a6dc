"""Time in which a process did not get to run: its machine swaps, has no CPU left, or has paused it. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["ProcessConditions", "StallMeter"]

WINDOW_SECONDS: Final = 10.0
"""The time that :meth:`StallMeter.share` is about."""
REMEMBERED_SECONDS: Final = 60.0
"""For so long a stall counts for :meth:`StallMeter.longest`."""
LEAST_SECONDS: Final = 0.05
"""A thread that wakes up less than this time too late is not stalled: every system is as late as that."""


class StallMeter:
    """Takes the times at which a thread wakes up that sleeps for ``period`` seconds at a time.

    A thread that wakes up late was kept from running. The CPU time of the process in the meantime is its own work, such
    as a call that keeps the interpreter's lock, so it is no stall.
    """

    def __init__(self, period: float, now: float, cpu: float) -> None:
        """
        Args:
            period: How long the thread sleeps, in seconds.
            now: The time of a steady clock.
            cpu: The CPU time of the process until now.
        """
        self.total = 0.0
        """Seconds of all stalls so far."""
        self._period = period
        self._woken, self._cpu = now, cpu
        self._began = now
        self._stalls: deque[tuple[float, float]] = deque()
        """The end and the length of each stall that is remembered."""

    def woken(self, now: float, cpu: float) -> float:
        """The thread has woken up. Returns for how long it was kept from running."""
        stalled = now - self._woken - self._period - (cpu - self._cpu)
        self._woken, self._cpu = now, cpu
        self._forget(now)
        if stalled < LEAST_SECONDS:
            return 0.0
        self.total += stalled
        self._stalls.append((now, stalled))
        return stalled

    def share(self, now: float) -> float:
        """The share of the last ten seconds in which the process was stalled, 0 to 1."""
        since = max(now - WINDOW_SECONDS, self._began)
        # A copy, because the thread goes on meanwhile.
        stalled = sum(min(seconds, end - since) for end, seconds in tuple(self._stalls) if end > since)
        return min(stalled / (now - since), 1.0) if now > since else 0.0

    def longest(self, now: float) -> float:
        """The longest stall within the last minute, in seconds."""
        since = now - REMEMBERED_SECONDS
        return max((seconds for end, seconds in tuple(self._stalls) if end > since), default=0.0)

    def _forget(self, now: float) -> None:
        while self._stalls and self._stalls[0][0] <= now - REMEMBERED_SECONDS:
            self._stalls.popleft()


@dataclass(frozen=True, slots=True)
class ProcessConditions:
    """What a process observes of its machine and of the store. Each is a function, which any thread may call."""

    stalled: Callable[[], float] = float
    """The share of the last ten seconds in which the process did not get to run, 0 to 1."""
    longest_stall: Callable[[], float] = float
    """The longest stall within the last minute, in seconds."""
    node_outages: Callable[[], Mapping[str, float]] = dict
    """For how many seconds each node of the store, host:port, has not answered this process; 0: it does."""
