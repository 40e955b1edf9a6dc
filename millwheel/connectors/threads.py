"""Calls of a library that blocks, on a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

__all__ = ["CallThread"]

_CLOSE_SECONDS: Final = 5.0
"""How long the end waits for the last call."""

_Call = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class CallThread:
    """Runs calls one after the other. All of them run on one thread, as some drivers of databases demand.

    A call may be stuck, because the other system does not answer. Neither :meth:`end` nor the end of the process waits
    for it: the thread is a daemon.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._unfinished = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run a function on the thread. If the caller is cancelled, the function goes on by itself."""
        return await self._put(function)

    async def end(self, last: Callable[[], Any]) -> None:
        """Run ``last``, and end the thread. Behind a call that still runs, this happens later, without the caller."""
        stuck = self._unfinished > 0
        done = self._put(last)
        self._calls.put(None)
        if not stuck:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await done

    def _put(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._unfinished += 1
        self._calls.put((function, answer))
        return answer

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, answer = call
            result: Any = None
            error: BaseException | None = None
            try:
                result = function()
            except BaseException as raised:  # the caller gets it
                error = raised
            with suppress(RuntimeError):  # the loop was closed meanwhile, so no caller waits
                answer.get_loop().call_soon_threadsafe(self._answer, answer, result, error)

    def _answer(self, answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._unfinished -= 1
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)
