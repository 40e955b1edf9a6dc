"""A gRPC server on loopback for the length of a block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc

from millwheel.rpc.server import bind, create_server

__all__ = ["serving"]


@asynccontextmanager
async def serving(*services: Callable[[grpc.aio.Server], object], port: int = 0) -> AsyncIterator[str]:
    """A server on loopback with what ``services`` add to it; its address."""
    server = create_server()
    for add in services:
        add(server)
    address = bind(server, port)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)
