"""One event loop for a benchmark's process, however often it runs something on it.

gRPC has one poller for a process. A completion that comes for a closed loop is an error in the loop that finds it, and
later completions wait. So a process that begins a loop for each run prints such errors, and may lose time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any, TypeVar

__all__ = ["run"]

Answer = TypeVar("Answer")


def run(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run ``work`` on this process's loop, which stays open. Only for the main thread."""
    return _runner().run(work)


@lru_cache(1)
def _runner() -> asyncio.Runner:
    return asyncio.Runner()
