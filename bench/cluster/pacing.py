"""A steady load: something is sent at each beat of a clock, and what comes late is made up for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

__all__ = ["beats", "wall_micros"]


async def beats(rate: float, seconds: float | None = None) -> AsyncIterator[int]:
    """0, 1, 2, …: ``rate`` of them a second, for so long, or until the iteration is given up."""
    began, number = time.perf_counter(), 0
    while seconds is None or number < rate * seconds:
        delay = began + number / rate - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        yield number
        number += 1


def wall_micros() -> int:
    """The time of an event that happens now."""
    return time.time_ns() // 1_000
