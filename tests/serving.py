"""gRPC servers on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc

from millwheel.rpc.server import bind, create_server

__all__ = ["LoopbackServer", "serving"]

Adder = Callable[[grpc.aio.Server], object]
"""Adds a service to a server."""


class LoopbackServer:
    """A server that may stop, and start again where it listened before: at ``address``."""

    def __init__(self, *services: Adder, port: int = 0) -> None:
        self.address = f"127.0.0.1:{port}"
        self._services = services

    async def start(self) -> None:
        self._server = create_server()
        for add in self._services:
            add(self._server)
        self.address = bind(self._server, int(self.address.rpartition(":")[2]))
        await self._server.start()

    async def stop(self) -> None:
        """Close all connections."""
        await self._server.stop(None)


@asynccontextmanager
async def serving(*services: Adder, port: int = 0) -> AsyncIterator[str]:
    """A server with what ``services`` add to it, for the length of a block; its address."""
    server = LoopbackServer(*services, port=port)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()
