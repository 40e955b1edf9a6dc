"""Connections to Cassandra that use asyncio's event loop, in the loop's thread.

The driver's own reactors have a separate thread. There a request wakes that thread, and the answer wakes the loop. Each
wake-up is a handover of the interpreter lock. Here the loop's thread writes each request and reads its answer itself.
The driver's other threads (for logins, heartbeats and schema reads) hand their calls to the loop.
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

__all__ = ["LoopThread", "close_connection", "connection_class"]


class LoopThread(NamedTuple):
    """An event loop, and the identifier of the thread that runs it."""

    loop: asyncio.AbstractEventLoop
    thread: int

    @classmethod
    def here(cls) -> LoopThread:
        """Return the running loop and the current thread."""
        return cls(asyncio.get_running_loop(), get_ident())

    def call(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call at once if this is the loop's thread, else soon in that thread. RuntimeError if the loop is closed."""
        if get_ident() == self.thread:
            call(*arguments)
        else:
            self.loop.call_soon_threadsafe(call, *arguments)


def connection_class(home: LoopThread) -> type[Connection]:
    """Return the connection class of one store, which is used in ``home``."""
    return type("LoopConnection", (_LoopConnection,), {"home": home, "open_ones": {}, "cluster": None})


async def close_connection(kind: type[Connection]) -> None:
    """Close the connections of class ``kind`` that the driver left open, and wait until they are closed.

    A connection pool that is still being made when its session ends has no owner. The driver does not close its
    connections. Must run in the connections' loop.
    """
    left = dict(kind.open_ones)
    for connection in left:
        connection.close()
    await asyncio.gather(*left.values())


class _LoopConnection(Connection):  # type: ignore[misc]
    """One connection. Its constructor blocks until it is open, so the loop's thread must not call it."""

    home: ClassVar[LoopThread]
    open_ones: ClassVar[dict[_LoopConnection, asyncio.Future[None]]]
    """The connections with an open transport, each with a future for its end. Only the loop uses this attribute."""
    cluster: ClassVar[Cluster | None]
    """The driver that makes these connections, once it has connected. It is ended when the loop is found closed."""
    is_closed: bool

    @classmethod
    def factory(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a connection that is ready; ConnectionException says why there is none.

        A refused login raises ConnectionException too. After AuthenticationFailed the driver would never try the node
        again. But a login can succeed later: a password may be changed back. And a node refuses every login while the
        replica with the passwords is down.
        """
        try:
            return super().factory(*args, **kwargs)
        except AuthenticationFailed as error:
            raise ConnectionException(str(error)) from error

    @classmethod
    def create_timer(cls, timeout: float, callback: Callable[[], object]) -> _Timer:
        """Call ``callback`` in the loop after ``timeout`` seconds, unless :meth:`_Timer.cancel` is called."""
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
        """Run ``call`` in the loop. If the loop is closed, end the driver and raise ConnectionShutdown.

        Coroutines are created in the loop's thread only. With a closed loop they would never be awaited.
        """
        try:
            self.home.call(call, *arguments)
        except RuntimeError:
            self.close()
            self.end_driver()
            raise ConnectionShutdown(f"the event loop of the connection to {self.endpoint} is closed") from None

    @classmethod
    def end_driver(cls) -> None:
        """End the driver where no caller can wait: its loop is closed, or its opening was cancelled.

        The end runs in a new thread. It waits for the driver's threads, and the caller may be one of them.
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
        """Store the transport of the new connection. The loop calls this."""
        self._transport = transport
        self.open_ones[self] = self.home.loop.create_future()
        for option in self.sockopts or ():
            transport.get_extra_info("socket").setsockopt(*option)
        if self.is_closed:
            transport.abort()

    def push(self, data: bytes) -> None:
        """Send ``data``."""
        assert self._transport is not None, "nothing is sent before the connection is there"
        self._call(self._transport.write, data)

    def received(self, data: bytes) -> None:
        """Process received bytes. Bytes that cannot be decoded end the connection."""
        self._iobuf.write(data)
        try:
            self.process_io_buffer()
        except Exception as error:
            self.defunct(error)

    def close(self) -> None:
        """Close the connection. Every request that waits for an answer fails."""
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
        if self._transport is not None:
            try:
                self.home.loop.call_soon_threadsafe(self._transport.abort)
            except RuntimeError:
                """The loop is closed. The socket is closed when nothing refers to it any more."""
        if not self.is_defunct:
            failure = ConnectionShutdown(f"the connection to {self.endpoint} was closed")
            self.error_all_requests(failure)
            if not self.connected_event.is_set():
                # Without ``last_error`` the driver treats the connection as ready once the event is set.
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
            with suppress(RuntimeError):  # the loop is closed, so the timer never fires
                self._home.call(self._handle.cancel)
