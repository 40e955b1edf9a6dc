"""The wall clock of a process. Drivers, servers and clients read it. A pure core takes the time as an argument."""

from __future__ import annotations

import time

from millwheel.model.time import Timestamp

__all__ = ["wall_now"]


def wall_now() -> Timestamp:
    """Return the wall time, in microseconds since the epoch."""
    return Timestamp(time.time_ns() // 1_000)
