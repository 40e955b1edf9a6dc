"""The worker's run queue: cores receive events one at a time, in the order in which they were posted.

Cores of one process send to each other without a network. Posting instead of calling keeps the stack flat, and gives
every core its turn.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

__all__ = ["RunQueue", "steady_now"]

log = logging.getLogger("millwheel.worker")

_TURN_SECONDS: Final = 0.005
"""How long the queue runs before sockets and timers get their turn."""


def steady_now() -> int:
    """Microseconds since an arbitrary moment before this process began. This clock is never set."""
    return time.monotonic_ns() // 1_000


class RunQueue:
    """A first-in, first-out queue of calls on the event loop. A call that raises is logged, and the next one runs.

    Exceptions that end the process (SystemExit, KeyboardInterrupt) propagate to the loop. The rest runs if the loop
    continues.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._scheduled = False

    def post(self, call: Callable[[Any], None], argument: Any) -> None:
        """Run ``call(argument)`` soon, after everything posted before."""
        self._calls.append((call, argument))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        calls = self._calls
        deadline = time.monotonic() + _TURN_SECONDS
        try:
            while calls:
                call, argument = calls.popleft()
                try:
                    call(argument)
                except (Exception, asyncio.CancelledError):
                    # This callback is not a task, so ``CancelledError`` has no owner and would stop the queue.
                    log.exception("a call of the run queue failed")
                if time.monotonic() > deadline:
                    break
        finally:
            if calls:
                self._loop.call_soon(self._run)
            else:
                self._scheduled = False
