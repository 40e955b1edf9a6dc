"""gRPC servers end with the event loop of the test that started them, also if the test fails before it stops them.

A server of grpc.aio's that is collected while it runs, after its loop was closed, raises within whatever test runs
then, and may wait for ever for its threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

import grpc

__all__ = ["stop_servers_with_their_loops"]

_stops: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncGenerator[None, None]]]] = WeakKeyDictionary()


async def _stopped(server: grpc.aio.Server) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await server.stop(None)


def stop_servers_with_their_loops() -> None:
    """From now on: an event loop that ends in order closes its asynchronous generators, one for each server here."""
    make: Any = grpc.aio.server

    def server(*arguments: Any, **options: Any) -> grpc.aio.Server:
        made: grpc.aio.Server = make(*arguments, **options)
        stop = _stopped(made)
        with suppress(StopIteration):
            stop.asend(None).send(None)
        _stops.setdefault(asyncio.get_running_loop(), []).append(stop)
        return made

    setattr(grpc.aio, "server", server)  # noqa: B010  # its type is a function's
