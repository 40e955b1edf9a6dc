"""Shares looks at the routing between calls. A look is a request for a master's current routing (section 5.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

__all__ = ["SharedLooks"]

_REST_SECONDS: Final = 0.02
"""The pause between two looks. So a process sends at most 50 of these requests a second, however many records it
refuses."""


class SharedLooks:
    """Runs ``look`` for its callers, one at a time.

    A look that began before a call may miss a change that the caller knows of. So the call waits for the next look.
    All calls that arrive meanwhile share that look.

    Invariant: a look may be delayed, but it is never skipped. Otherwise a call could get an outdated result.
    """

    def __init__(self, look: Callable[[], Awaitable[None]]) -> None:
        self.begun = 0
        """How many looks have begun."""
        self._look = look
        self._ended = 0
        self._task: asyncio.Task[None] | None = None
        self._next_at = 0.0
        self._closed = False

    async def after(self, begun: int) -> None:
        """Wait for the end of a look that began after the first ``begun`` looks. Returns at once after :meth:`close`.

        Args:
            begun: The value of :attr:`begun` when the caller was called.

        Raises:
            Exception: The exception of ``look``.
        """
        while self._ended <= begun and not self._closed:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run(), name="a look at the routing")
            task = self._task
            # ``await task`` would cancel the shared look if this caller is cancelled. ``asyncio.wait`` does not.
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def close(self) -> None:
        """Stop the looks. All waiting calls return."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        if (rest := self._next_at - loop.time()) > 0:
            await asyncio.sleep(rest)
        self.begun += 1
        try:
            await self._look()
        finally:
            self._ended = self.begun
            self._next_at = loop.time() + _REST_SECONDS
