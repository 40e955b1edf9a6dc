"""A clock for leases within one process. It counts only time in which the event loop runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

__all__ = ["LoopClock"]

_BEAT_SECONDS: Final = 0.25
"""Seconds between two beats. Four wake-ups per second cost almost nothing."""
_MAX_GAP_SECONDS: Final = 0.5
"""The most seconds that count between two beats. A running loop beats twice in that time."""


class LoopClock:
    """Counts the seconds for which the event loop ran. A standstill of the loop counts as half a second at most.

    Invariant: no lease ends because of time in which its holder could not run.

    Why: the coordinator and all its clients share one loop. A step that keeps a client from renewing also keeps the
    beat from running. Each pass of the loop counts as one gap at most, and a renewal takes a few passes. During a
    standstill no client runs, so none waits for the lease to end.

    Who could break it: a client in another process or on another loop. It would run while this clock stands still, and
    would wait longer than a lease's time. So a coordinator for several processes must not use this clock. The one on
    etcd counts real time, and a suspended worker loses its lease.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: monotonic seconds, which also grow while the loop stands still."""
        self._clock = clock
        self._counted = 0.0
        self._beaten = clock()
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self) -> float:
        """Return the seconds counted so far."""
        return self._counted + min(self._clock() - self._beaten, _MAX_GAP_SECONDS)

    def start(self) -> None:
        """Start to beat in the running loop. Idempotent. Until then the clock counts one gap at most."""
        if self._timer is None:
            self.beat()

    def beat(self) -> None:
        """Count the time since the previous beat, and schedule the next one."""
        self._counted, self._beaten = self(), self._clock()
        self._timer = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self.beat)

    def stop(self) -> None:
        """Stop beating."""
        if self._timer is not None:
            self._timer.cancel()
