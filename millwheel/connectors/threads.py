"""Calls of a library that blocks, on a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final
from weakref import finalize

__all__ = ["CallThread"]

_CLOSE_SECONDS: Final = 5.0
"""How long the end waits for the last call."""

_Call = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class _Calls:
    """What both threads know. The caller's thread alone counts."""

    def __init__(self) -> None:
        self.waiting: SimpleQueue[_Call | None] = SimpleQueue()
        """None ends the thread."""
        self.unfinished = 0

    def finish(self, answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self.unfinished -= 1
        if answer.done():  # the caller was cancelled
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)


class CallThread:
    """Runs calls one after the other. All of them run on one thread, as some drivers of databases demand.

    A call may be stuck, because the other system does not answer. Neither :meth:`end` nor the end of the process waits
    for it: the thread is a daemon.
    """

    def __init__(self, name: str) -> None:
        self._calls = _Calls()
        Thread(target=_run, args=(self._calls,), name=name, daemon=True).start()
        # One that was never ended, as in a test, leaves no thread behind.
        finalize(self, self._calls.waiting.put, None).atexit = False

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run a function on the thread. If the caller is cancelled, the function goes on by itself."""
        return await self._put(function)

    async def end(self, last: Callable[[], Any], *, unfinished_seconds: float = 0.0) -> None:
        """Run ``last``, and end the thread. Behind a call that still runs, this happens later, without the caller.

        Args:
            last: The last call.
            unfinished_seconds: How long to wait for it behind a call that still runs.
        """
        is_stuck = self._calls.unfinished > 0
        done = self._put(last)
        self._calls.waiting.put(None)
        if is_stuck:
            await asyncio.wait([done], timeout=unfinished_seconds)
        else:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await done

    def _put(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.unfinished += 1
        self._calls.waiting.put((function, answer))
        return answer


def _run(calls: _Calls) -> None:
    while (call := calls.waiting.get()) is not None:
        function, answer = call
        result: Any = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:  # the caller gets it
            error = raised
        with suppress(RuntimeError):  # the loop was closed meanwhile, so no caller waits
            answer.get_loop().call_soon_threadsafe(calls.finish, answer, result, error)
        del call, function, answer, result, error  # nothing is kept while the thread waits
