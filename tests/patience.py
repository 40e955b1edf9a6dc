"""The time limits of tests. One factor multiplies all of them.

A limit ends a test that hangs. It states no speed: a test waits for a condition, and a slow or busy machine must not
change its outcome.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

SLOWNESS: Final = float(os.environ.get("MILLWHEEL_TEST_SLOWNESS", "8"))
"""The most times that this machine may be slower than an idle one. Every limit is multiplied by it."""


def patience(seconds: float) -> float:
    """The limit, in seconds, for a step that takes less than ``seconds`` on an idle machine."""
    return seconds * SLOWNESS


async def until(
    found: Callable[[], object],
    seconds: float = patience(20),
    every: float = 0.005,
    *,
    holds: Callable[[Any], object] = bool,
) -> Any:
    """Call ``found()`` until ``holds`` is true of its result, and return that result.

    TimeoutError, with the last result, if it takes too long. The calls are ``every`` seconds apart. The result may be
    an awaitable.
    """
    value: Any = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                answer = found()
                value = await answer if isinstance(answer, Awaitable) else answer
                if holds(value):
                    return value
                await asyncio.sleep(every)
    except TimeoutError as error:
        raise TimeoutError(f"not within {seconds:g} s; the last result: {value!r:.4000}") from error
