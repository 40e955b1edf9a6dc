"""gRPC servers on loopback."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from millwheel.rpc.server import bind, create_server

Adder = Callable[[grpc.aio.Server], object]
"""Adds a service to a server."""


class LoopbackServer:
    """A server that can stop, and start again at the same ``address``, which ``async with`` yields."""

    def __init__(self, *services: Adder, port: int = 0) -> None:
        self.address = f"127.0.0.1:{port}"
        self._services = services

    async def __aenter__(self) -> str:
        await self.start()
        return self.address

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = create_server()
        for add in self._services:
            add(self._server)
        self.address = bind(self._server, int(self.address.rpartition(":")[2]))
        await self._server.start()

    async def stop(self) -> None:
        """Close all connections."""
        await self._server.stop(None)
