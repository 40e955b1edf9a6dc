"""gRPC servers end before the tasks of the event loop that they run on, also if a test fails before it stops them.

A loop that ends cancels its tasks. One of them belongs to each server of grpc.aio, and holds the memory that gRPC's
core fills in when the next call comes or the server ends. If that task ends before its server, the core writes into
memory that was freed. A process of tests died of that later, in a test that had nothing to do with it. A server that
is collected while it runs raises within whatever test runs then, and may wait for ever for its threads.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from weakref import WeakKeyDictionary

import grpc

from tests.patience import patience

__all__ = ["stop_servers_with_their_loops"]

_started: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, list[grpc.aio.Server]]] = WeakKeyDictionary()


def stop_servers_with_their_loops() -> None:
    """From now on, a loop that ``asyncio.run`` or ``asyncio.Runner`` ends stops its servers first."""
    make: Any = grpc.aio.server
    runners: Any = asyncio.runners
    cancel_all_tasks = runners._cancel_all_tasks  # noqa: SLF001  # asyncio has no hook for a loop's end

    def server(*arguments: Any, **options: Any) -> grpc.aio.Server:
        made: grpc.aio.Server = make(*arguments, **options)
        _started.setdefault(asyncio.get_running_loop(), []).append(made)
        return made

    def stop_and_cancel(loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_until_complete(_stop(_started.pop(loop, [])))
        finally:
            cancel_all_tasks(loop)

    setattr(grpc.aio, "server", server)  # noqa: B010  # its type is a function's
    runners._cancel_all_tasks = stop_and_cancel  # noqa: SLF001  # asyncio has no hook for a loop's end


async def _stop(servers: list[grpc.aio.Server]) -> None:
    async with asyncio.timeout(patience(2.0)):
        for one in servers:
            await one.stop(None)
