"""How long tests wait for what has to happen: one factor for all of them.

A limit says when a test is given up because something hangs. It is no statement about speed: a test waits for a
condition, and a machine that is many times slower, or busy with other work, must not change its outcome.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

SLOWNESS: Final = float(os.environ.get("MILLWHEEL_TEST_SLOWNESS", "5"))
"""How many times slower than an idle machine this one may be. Every limit of every test is multiplied by it."""


def patience(seconds: float) -> float:
    """The limit, in seconds, for what takes less than ``seconds`` on an idle machine."""
    return seconds * SLOWNESS


async def until(found: Callable[[], object], seconds: float = patience(20), every: float = 0.005) -> Any:
    """Return what ``found()`` returns, once that is true; TimeoutError if that takes too long.

    It is asked again after ``every`` seconds. It may return an awaitable.
    """
    async with asyncio.timeout(seconds):
        while True:
            answer = found()
            value = await answer if isinstance(answer, Awaitable) else answer
            if value:
                return value
            await asyncio.sleep(every)
