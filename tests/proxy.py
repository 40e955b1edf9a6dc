"""A proxy on loopback that can swallow what a server answers, and cut its connections."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from types import TracebackType

__all__ = ["CuttingProxy"]


class CuttingProxy:
    """Stands before one server: ``async with``, then connect to ``address``."""

    def __init__(self, target: str, *, tls: ssl.SSLContext | None = None, delay: float = 0.0) -> None:
        """Make a proxy.

        Args:
            target: the server's host:port.
            tls: what the proxy's clients connect with, if they use TLS. The server is reached without it.
            delay: seconds that each new connection takes.
        """
        self._host, _, self._port = target.rpartition(":")
        self._tls = tls
        self._delay = delay
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_deaf = False
        """While true, what clients send arrives, and nothing comes back."""

    @property
    def address(self) -> str:
        """host:port for clients."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def cut(self) -> None:
        """Close all connections; new ones may be made."""
        for task in self._tasks:
            task.cancel()

    async def __aenter__(self) -> CuttingProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step runs nothing: only a callback closes the connection then.
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await asyncio.sleep(self._delay)
            there, to = await asyncio.open_connection(self._host, int(self._port))
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass_on(reader, to, False))
                    both.create_task(self._pass_on(there, writer, True))
            except* OSError:
                pass  # one side has closed its connection, or has lost it
            finally:
                to.close()

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, answers: bool) -> None:
        # A connection that has lost something never has anything more: TCP leaves nothing out.
        lost = False
        while data := await source.read(65_536):
            lost = lost or (answers and self.is_deaf)
            if not lost:
                sink.write(data)
                await sink.drain()
        raise ConnectionError("closed")
