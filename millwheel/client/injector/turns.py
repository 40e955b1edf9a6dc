"""Keeps send calls in order while one of them waits for an answer about its records (section 5.2)."""

from __future__ import annotations

import asyncio
from types import TracebackType

__all__ = ["SendTurns"]


class SendTurns:
    """A lock that calls get in the order in which they request it. Use it with ``async with``.

    A call may send without the lock only if ``busy`` is False. ``asyncio.Lock.locked()`` is not enough for this check.
    It is False between two holders, so the call could overtake calls that wait.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._calls = 0

    @property
    def busy(self) -> bool:
        """Whether a call holds the lock or waits for it."""
        return self._calls > 0

    async def __aenter__(self) -> None:
        self._calls += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._calls -= 1
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls -= 1
        self._lock.release()
