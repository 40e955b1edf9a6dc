"""The clocks of a process. Drivers, servers and clients read them. A pure core takes the time as an argument."""

from __future__ import annotations

import time

from millwheel.model.time import Timestamp

__all__ = ["steady_now", "wall_now"]


def wall_now() -> Timestamp:
    """Return the wall time, in microseconds since the epoch."""
    return Timestamp(time.time_ns() // 1_000)


def steady_now() -> int:
    """Return microseconds since an arbitrary moment before this process began. This clock is never set."""
    return time.monotonic_ns() // 1_000
