"""Relays on loopback between clients and servers. Tests cut and slow their connections, and lose data on them."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from contextlib import suppress
from typing import Final, Self

_PIECE: Final = 1 << 16

Line = tuple[str, str]
"""The names of a client and a server."""


class Relay:
    """Relays to servers. Use it as ``async with``: the block closes all connections at its end."""

    def __init__(self) -> None:
        self.lines: Counter[Line] = Counter()
        """The open connections."""
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    # Faults, which subclasses inject.

    async def client_of(self, writer: asyncio.StreamWriter) -> str:
        """The name of the client of a new connection."""
        return "client"

    async def opens(self, line: Line) -> None:
        """Return when the connection may open."""

    async def passes(self, line: Line, answer: bool) -> bool:
        """Return True when a piece of data may pass, to the server or as an ``answer``. Return False to lose it."""
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        self.close_connections()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def close_connections(self) -> None:
        """Close all connections. New ones may be made."""
        for connection in self._connections:
            connection.cancel()

    async def serve(
        self, name: str, target: str, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
    ) -> str:
        """Relay connections to the server ``name`` at ``target``, host:port. Returns the address for clients.

        ``tls``: the clients' side uses it. The relay connects to the server without TLS.
        """

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._connect(name, target, reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            # A task that is cancelled before its first step runs nothing: only a callback closes the connection then.
            task.add_done_callback(lambda _: writer.close())

        self._servers.append(await asyncio.start_server(accept, host, port, ssl=tls))
        host, port = self._servers[-1].sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def _connect(
        self, name: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        line = await self.client_of(writer), name
        await self.opens(line)
        host, _, port = target.rpartition(":")
        try:
            back, forth = await asyncio.open_connection(host, int(port))
        except OSError:
            return
        self.lines[line] += 1
        try:
            await asyncio.gather(self._pump(line, reader, forth, False), self._pump(line, back, writer, True))
        finally:
            self.lines[line] -= 1
            forth.close()

    async def _pump(
        self, line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool
    ) -> None:
        """Relay one direction until it ends. Then close the other end."""
        # A connection that has lost a piece passes no later piece: TCP has no gaps.
        lost = False
        with suppress(OSError):
            while data := await reader.read(_PIECE):
                lost = lost or not await self.passes(line, answers)
                if writer.is_closing():  # the other direction has ended meanwhile, so there is no peer to write to
                    break
                if not lost:
                    writer.write(data)
                    await writer.drain()
        writer.close()


class CuttingProxy(Relay):
    """A relay at ``address`` before one server. It can lose the server's answers."""

    def __init__(self, target: str, *, tls: ssl.SSLContext | None = None, delay: float = 0.0) -> None:
        """``delay``: seconds until a new connection opens."""
        super().__init__()
        self.is_deaf = False
        """While true, the server gets the clients' data, and its answers are lost."""
        self._target = target
        self._tls = tls
        self._delay = delay

    async def __aenter__(self) -> Self:
        self.address = await self.serve("server", self._target, tls=self._tls)
        return self

    async def opens(self, line: Line) -> None:
        await asyncio.sleep(self._delay)

    async def passes(self, line: Line, answer: bool) -> bool:
        return not (answer and self.is_deaf)
