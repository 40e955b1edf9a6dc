"""The open streams of a server, so that a credential that is revoked, or a role that is taken away, ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc

from millwheel.rpc.errors import abort
from millwheel.rpc.failures import RequestError

__all__ = ["OpenCalls"]


@dataclass(eq=False, slots=True)
class OpenCall:
    """An open stream. ``check`` returns why it may no longer go on, or None."""

    context: Any
    task: asyncio.Task[Any] | None
    check: Callable[[], RequestError | None]


class OpenCalls:
    """The open streams. Each is checked again by :meth:`recheck`, so no message pays for a check."""

    def __init__(self) -> None:
        self._calls: set[OpenCall] = set()

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def held(self, context: Any, check: Callable[[], RequestError | None]) -> Iterator[None]:
        """Hold the present call for the duration of the block."""
        call = OpenCall(context, asyncio.current_task(), check)
        self._calls.add(call)
        try:
            yield
        finally:
            self._calls.discard(call)

    async def recheck(self) -> list[RequestError]:
        """End the calls that may no longer go on. Returns why, one for each."""
        ended = []
        for call in tuple(self._calls):
            error = call.check()
            if error is not None and call in self._calls:
                self._calls.discard(call)
                ended.append(error)
                await _end(call, error)
        return ended


async def _end(call: OpenCall, error: RequestError) -> None:
    """Send the status, then stop the handler. The handler itself may wait for a message that never comes."""
    with suppress(grpc.aio.AbortError, grpc.aio.UsageError, asyncio.InvalidStateError):
        await abort(call.context, error)
    if call.task is not None:
        call.task.cancel()
