"""A clock for leases within one process: it counts only time in which the event loop ran."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

__all__ = ["LoopClock"]

_BEAT_SECONDS: Final = 0.25
"""Seconds between two beats: four wake-ups a second cost nothing to speak of."""
_MAX_GAP_SECONDS: Final = 0.5
"""Seconds that count between two beats, at most. A loop that runs beats twice in that time."""


class LoopClock:
    """Seconds for which the event loop ran. A standstill of the whole loop counts as at most half a second.

    Invariant: no lease ends for time in which its holder could not run. Why: the coordinator and all its clients share
    one loop, so a step that keeps a client from renewing keeps the beat from coming, too; and each pass of the loop,
    of which a renewal takes a few, counts as at most one gap. Nobody waits for such a lease to end meanwhile: nobody
    else runs. Who could break it: a client of the coordinator in another process, or on another loop. It would go on
    while this clock stands, and would wait for longer than a lease's time. So a coordinator for several processes
    must not use this clock; the one on etcd counts time as it passes, and a worker that is suspended loses its lease.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds that only grow, whether or not the loop runs."""
        self._clock = clock
        self._counted = 0.0
        self._beaten = clock()
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self) -> float:
        """The seconds so far."""
        return self._counted + min(self._clock() - self._beaten, _MAX_GAP_SECONDS)

    def start(self) -> None:
        """Beat in the running loop; nothing happens if it does already. Before, only one gap counts."""
        if self._timer is None:
            self.beat()

    def beat(self) -> None:
        """The loop runs: count the time since the beat before."""
        self._counted, self._beaten = self(), self._clock()
        self._timer = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self.beat)

    def stop(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()
