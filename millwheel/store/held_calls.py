"""Calls that wait until everything that was written before them is on the disk.

An append may have its outcome when it is written and not synced yet. Nothing that depends on it may leave the process
before the sync (docs/decisions/0001-embedded-store.md). What leaves the process is a call here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["HeldCalls"]

_LONGEST_SECONDS: Final = 0.002
"""How long appends go on to be written without a sync. Then the next one is synced, so that no call waits for long."""


class HeldCalls:
    """The calls of one event loop, in their order.

    Invariant (G1): a call runs only if everything written before it is on the disk. Who could break it: code that
    releases the calls after a sync of which it does not know that it began after the last write.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._since: float | None = None
        self.begun = 0
        """How often outcomes came before their sync."""

    @property
    def waits(self) -> bool:
        """Whether there is an outcome whose sync is still to come."""
        return self._since is not None

    def is_due(self, now: float) -> bool:
        """Whether the sync must not be put off any more."""
        return self._since is not None and now - self._since > _LONGEST_SECONDS

    def begin(self, now: float) -> None:
        """Appends that were written have their outcomes before the sync."""
        self.begun += 1
        if self._since is None:
            self._since = now

    def run(self, call: Callable[[], None]) -> None:
        """Run ``call`` when all that is written now is on the disk: at once if it is and no earlier call waits."""
        if self._since is None and not self._calls:
            call()
        else:
            self._calls.append(call)

    def release(self) -> None:
        """Everything written is on the disk: run the calls, and those that they add. One that raises stops no other.

        If one lets outcomes come before their sync again, the rest waits for that sync.
        """
        self._since = None
        while self._calls and self._since is None:
            call = self._calls.popleft()
            try:
                call()
            except (Exception, asyncio.CancelledError) as error:  # no task runs here that could be cancelled
                context = {"message": "a call failed that waited for a sync of the store", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
