"""An event loop in a thread of its own, for the clients of programs that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from millwheel.sdk.errors import UsageError

__all__ = ["BackgroundLoop", "LoopStoppedError"]

Result = TypeVar("Result")


class LoopStoppedError(UsageError):
    """The loop was stopped before the call."""


class BackgroundLoop:
    """Runs coroutines for callers in other threads, which block meanwhile.

    Args:
        name: The name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        """Held while work is passed to the loop. So no work arrives after ``stop`` has cancelled the rest."""
        self._open = True

    @property
    def is_open(self) -> bool:
        """Whether it takes work."""
        return self._open

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of a coroutine. If the caller is interrupted, the coroutine is cancelled.

        Raises:
            LoopStoppedError: The loop was stopped.
            concurrent.futures.CancelledError: The loop is stopped meanwhile.
        """
        with self._lock:
            if not self._open:
                work.close()
                raise LoopStoppedError(f"{self._thread.name} is closed: open another one")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # For example a KeyboardInterrupt: the call must not continue in the background.
            future.cancel()
            raise

    def enter(self, make: Callable[[], AbstractAsyncContextManager[Result]]) -> Result:
        """Make a client in the thread, and enter it. If that fails, the thread ends."""

        async def entered() -> Result:
            return await make().__aenter__()

        try:
            return self.run(entered())
        except BaseException:
            self.stop()
            raise

    def leave(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close the client, and end the thread. No effect the second time."""

        async def closed() -> None:
            await close()

        if self._open:
            try:
                self.run(closed())
            finally:
                self.stop()

    def stop(self) -> None:
        """Cancel what still runs, and end the thread. No effect the second time."""
        with self._lock:
            if not self._open:
                return
            self._open = False
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    """Cancel all other tasks of the loop, so that calls from other threads do not wait for a stopped loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
