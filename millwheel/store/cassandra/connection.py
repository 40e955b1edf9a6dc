"""Connections to Cassandra whose bytes are read and written by asyncio's loop, in its own thread.

The driver's own reactors have a thread of theirs: a request wakes it, and its answer wakes the loop again, each time
against the interpreter's lock. Here a request is written where it is made, and answered where it is waited for. What
the driver does from other threads (logging in, heartbeats, looking at the schema) is handed to the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread, get_ident
from typing import Any, ClassVar, NamedTuple, cast

from cassandra import AuthenticationFailed, OperationTimedOut
from cassandra.cluster import Cluster
from cassandra.connection import Connection, ConnectionException, ConnectionShutdown

__all__ = ["LoopThread", "connection_class", "hang_up"]


class LoopThread(NamedTuple):
    """A loop, and the identifier of the thread that it runs in."""

    loop: asyncio.AbstractEventLoop
    thread: int

    @classmethod
    def here(cls) -> LoopThread:
        """The loop that runs, and this thread."""
        return cls(asyncio.get_running_loop(), get_ident())

    def call(self, call: Callable[..., object], *arguments: Any) -> None:
        """At once where this is that thread, else soon, in that one; RuntimeError if the loop is closed."""
        if get_ident() == self.thread:
            call(*arguments)
        else:
            self.loop.call_soon_threadsafe(call, *arguments)


def connection_class(home: LoopThread) -> type[Connection]:
    """The connections of one store, which is used in ``home``."""
    return type("LoopConnection", (_LoopConnection,), {"home": home, "open_ones": {}, "cluster": None})


async def hang_up(kind: type[Connection]) -> None:
    """Close what the driver has left open of a kind, in its loop, and see it closed.

    A pool that was being made while its session ended is nobody's, and neither are its connections.
    """
    left = dict(kind.open_ones)
    for connection in left:
        connection.close()
    await asyncio.gather(*left.values())


class _LoopConnection(Connection):  # type: ignore[misc]
    """One connection. Whoever makes one waits for it, and is never the loop's thread."""

    home: ClassVar[LoopThread]
    open_ones: ClassVar[dict[_LoopConnection, asyncio.Future[None]]]
    """Those whose transport is not closed yet, with what tells of its end; looked at and changed in the loop alone."""
    cluster: ClassVar[Cluster | None]
    """The driver that makes these connections, once it has connected. It ends where it finds the loop closed."""
    is_closed: bool

    @classmethod
    def factory(cls, *args: Any, **kwargs: Any) -> Any:
        """A connection that is ready; ConnectionException says why there is none.

        A refused login is a failure like any other. The driver never again tries a node that has refused one. Yet a
        password may be changed back, and a node refuses everybody while the replica with the passwords is away.
        """
        try:
            return super().factory(*args, **kwargs)
        except AuthenticationFailed as error:
            raise ConnectionException(str(error)) from error

    @classmethod
    def create_timer(cls, timeout: float, callback: Callable[[], object]) -> _Timer:
        """Have ``callback`` called in the loop after so many seconds; see :meth:`_Timer.cancel`."""
        return _Timer(cls.home, timeout, callback)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._transport: asyncio.WriteTransport | None = None
        self._opening: asyncio.Task[None] | None = None
        opened: Future[None] = Future()
        self._call(self._open, opened)
        try:
            opened.result(self.connect_timeout)
        except TimeoutError:
            self.close()
            self._call(self._give_up)
            raise OperationTimedOut(f"no connection to {self.endpoint} within {self.connect_timeout:g} s") from None
        self._send_options_message()

    def _call(self, call: Callable[..., object], *arguments: Any) -> None:
        """Have the loop call it; if the loop is closed, end the driver and raise ConnectionShutdown.

        No coroutine is made outside of the loop's thread: a closed loop would leave it never awaited.
        """
        try:
            self.home.call(call, *arguments)
        except RuntimeError:
            self.close()
            self.end_driver()
            raise ConnectionShutdown(f"the event loop of the connection to {self.endpoint} is closed") from None

    @classmethod
    def end_driver(cls) -> None:
        """End the driver, where nobody can wait for it: its loop is closed, or its opening was cancelled.

        It gets a thread of its own: the end waits for the driver's threads, and the caller may be one of them.
        """
        cluster, cls.cluster = cls.cluster, None
        if cluster is not None:
            Thread(target=cluster.shutdown, name="millwheel-cassandra-end", daemon=True).start()

    def _open(self, opened: Future[None]) -> None:
        if not self.is_closed:
            self._opening = self.home.loop.create_task(self._connect(opened))

    def _give_up(self) -> None:
        if self._opening is not None:
            self._opening.cancel()

    async def _connect(self, opened: Future[None]) -> None:
        address, port = self.endpoint.resolve()
        try:
            await self.home.loop.create_connection(
                lambda: _Protocol(self), address, port, ssl=self.ssl_context, family=self.endpoint.socket_family
            )
        except BaseException as error:
            opened.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            opened.set_result(None)

    def opened(self, transport: asyncio.WriteTransport) -> None:
        """The loop has connected."""
        self._transport = transport
        self.open_ones[self] = self.home.loop.create_future()
        for option in self.sockopts or ():
            transport.get_extra_info("socket").setsockopt(*option)
        if self.is_closed:
            transport.abort()

    def push(self, data: bytes) -> None:
        """Send."""
        assert self._transport is not None, "nothing is sent before the connection is there"
        self._call(self._transport.write, data)

    def received(self, data: bytes) -> None:
        """Take in what has come; what cannot be understood ends the connection."""
        self._iobuf.write(data)
        try:
            self.process_io_buffer()
        except Exception as error:
            self.defunct(error)

    def close(self) -> None:
        """Hang up; whoever waits for an answer is told."""
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
        if self._transport is not None:
            try:
                self.home.loop.call_soon_threadsafe(self._transport.abort)
            except RuntimeError:
                """The loop is closed. The socket is closed as soon as nothing refers to it."""
        if not self.is_defunct:
            failure = ConnectionShutdown(f"the connection to {self.endpoint} was closed")
            self.error_all_requests(failure)
            if not self.connected_event.is_set():
                # Who waits for the connection takes it for one that is ready, unless told otherwise.
                self.last_error = failure
            self.connected_event.set()


class _Protocol(asyncio.Protocol):
    def __init__(self, connection: _LoopConnection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection.opened(cast(asyncio.WriteTransport, transport))

    def data_received(self, data: bytes) -> None:
        self._connection.received(data)

    def connection_lost(self, error: Exception | None) -> None:
        if (gone := self._connection.open_ones.pop(self._connection, None)) is not None and not gone.done():
            gone.set_result(None)
        if error is None:
            self._connection.close()
        else:
            self._connection.defunct(error)


class _Timer:
    def __init__(self, home: LoopThread, seconds: float, callback: Callable[[], object]) -> None:
        self._home = home
        self._handle: asyncio.TimerHandle | None = None
        self._cancelled = False
        home.call(self._set, seconds, callback)

    def _set(self, seconds: float, callback: Callable[[], object]) -> None:
        if not self._cancelled:
            self._handle = self._home.loop.call_later(seconds, callback)

    def cancel(self) -> None:
        self._cancelled = True
        if self._handle is not None:
            with suppress(RuntimeError):  # the loop is closed, and calls nothing any more
                self._home.call(self._handle.cancel)
