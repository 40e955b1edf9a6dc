"""The way of a command to the master: one request, or a client that waits for a server which is still starting."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from millwheel.client.control import ControlClient
from millwheel.rpc.waiting import wait_notices

__all__ = ["ask", "retrying_client"]

Answer = TypeVar("Answer")

_FIRST_NOTICE_SECONDS: Final = 1.0
_NEXT_NOTICE_SECONDS: Final = 10.0


def ask(work: Callable[[ControlClient], Awaitable[Answer]], address: str, timeout: float) -> Answer:
    """Return what ``work`` answers with a client. RequestError: the master refused, or cannot be reached."""

    async def run() -> Answer:
        async with ControlClient(address, deadline=timeout) as client:
            return await work(client)

    return asyncio.run(run())


@asynccontextmanager
async def retrying_client(address: str, timeout: float, patience: float) -> AsyncIterator[ControlClient]:
    """Open a client that retries while the server cannot be reached.

    Args:
        address: the masters' addresses.
        timeout: the maximum seconds of one call.
        patience: seconds for which a call with a temporary error is retried. 0: no retry.
    """
    async with ControlClient(address, deadline=timeout, patience=patience) as client:

        def describe(seconds: float) -> str:
            return f"waiting for {seconds:.0f} s by now, {patience:g} s at most (--patience), for {client.awaited()}"

        def say(notice: str) -> None:
            # A slow call has not failed, so it causes no notice.
            if client.failure is not None:
                print(notice, file=sys.stderr, flush=True)

        with wait_notices(describe, say, first=_FIRST_NOTICE_SECONDS, again=_NEXT_NOTICE_SECONDS):
            yield client
