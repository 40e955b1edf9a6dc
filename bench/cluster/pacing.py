"""A steady load: one send for each beat of a clock. Beats that were missed are made up for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

__all__ = ["beats", "wall_micros"]


async def beats(rate: float, seconds: float | None = None) -> AsyncIterator[int]:
    """Yield 0, 1, 2, … at ``rate`` per second, for the given time or until the iteration is closed."""
    began, number = time.perf_counter(), 0
    while seconds is None or number < rate * seconds:
        delay = began + number / rate - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        yield number
        number += 1


def wall_micros() -> int:
    """The wall time now, in microseconds, as the timestamp of a new event."""
    return time.time_ns() // 1_000
