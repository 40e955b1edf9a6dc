"""The client side of a simulated gRPC: channels and calls like those of ``grpc.aio``, as far as the product needs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, Final

import grpc

from simulation.network import Connection, Network
from simulation.process import PROCESS, Process

__all__ = ["SimulatedChannel", "channel_of"]

WINDOW: Final = 64
"""Messages that may be in flight to a server that does not read them, before writing blocks."""
_BACKOFF: Final = (0.1, 1.0)

_EOF: Final = grpc.aio.EOF  # type: ignore[attr-defined]

Status = tuple[grpc.StatusCode, str, Any]
_BROKEN: Final[Status] = (grpc.StatusCode.UNAVAILABLE, "Socket closed", None)
_UNREACHED: Final[Status] = (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses", None)


class Call:
    """One call of any shape. Its shape decides whether callers await, read, iterate or write to it."""

    def __init__(
        self,
        channel: SimulatedChannel,
        method: str,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        timeout: float | None,
    ) -> None:
        self.method = method
        self.unread = 0
        """Messages that the server has not read yet."""
        self._channel = channel
        self._encode = encode
        self._decode = decode
        self._loop = asyncio.get_running_loop()
        self._outgoing: list[tuple[Any, ...]] | None = []
        """Messages that wait for the connection; None once there is one."""
        self._incoming: deque[bytes] = deque()
        self._status: Status | None = None
        self._cancelled = False
        self._waiters: list[asyncio.Future[None]] = []
        self._timer = None if timeout is None else self._loop.call_later(timeout, self._expire)
        self.number = channel.begin(self)

    # Notifications of the connection.

    def connected(self) -> None:
        """The channel is connected: send the waiting messages."""
        waiting, self._outgoing = self._outgoing or [], None
        for message in waiting:
            self._channel.send(self, message)

    def received(self, message: tuple[Any, ...]) -> None:
        """Receive a message of the server."""
        if self._status is not None:
            return
        if message[0] == "message":
            self._incoming.append(message[1])
            self._wake()
        elif message[0] == "window":
            self._wake()
        else:
            self.end(message[1])

    def end(self, status: Status) -> None:
        """End the call with a status."""
        if self._status is None:
            self._status = status
            if self._timer is not None:
                self._timer.cancel()
            self._channel.ended(self)
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _expire(self) -> None:
        self._put(("cancel",))
        self.end((grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", None))

    # Methods for callers.

    def cancel(self) -> bool:
        """End the call on this side."""
        if self._status is not None:
            return False
        self._cancelled = True
        self._put(("cancel",))
        self.end((grpc.StatusCode.CANCELLED, "Locally cancelled by application!", None))
        return True

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._status is not None

    def cancelled(self) -> bool:
        """Whether this side ended the call."""
        return self._cancelled

    async def code(self) -> grpc.StatusCode:
        """Wait for the end of the call, and return its status code."""
        while self._status is None:
            await self._more()
        return self._status[0]

    async def read(self) -> Any:
        """The next message, or EOF."""
        while not self._incoming:
            if self._status is not None:
                self._raise()
                return _EOF
            await self._more()
        return self._decode(self._incoming.popleft())

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not _EOF:
            yield message

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        while self._status is None:
            await self._more()
        self._raise()
        return self._decode(self._incoming.popleft())

    async def write(self, request: Any) -> None:
        """Send a message. Waits while the server is far behind."""
        if self._status is not None:
            raise asyncio.InvalidStateError("RPC already finished.")
        self.unread += 1
        self._put(("message", self._encode(request), self))
        while self.unread > WINDOW:
            await self._more()
            if self.done():
                self._raise()
                return

    async def done_writing(self) -> None:
        """Declare that no more messages follow."""
        self._put(("end",))

    def start(self, request: Any = None) -> None:
        """Begin the call, with its only request, or without one if the caller writes requests."""
        whole = None if request is None else self._encode(request)
        self._put(("start", self.method, whole, self))

    def _put(self, message: tuple[Any, ...]) -> None:
        if self._outgoing is None:
            self._channel.send(self, message)
        else:
            self._outgoing.append(message)

    async def _more(self) -> None:
        """Wait for a change. A task that is cancelled meanwhile cancels the call, as with the real gRPC."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _raise(self) -> None:
        assert self._status is not None
        code, details, trailing = self._status
        if self._cancelled:
            raise asyncio.CancelledError
        if code is not grpc.StatusCode.OK:
            metadata = grpc.aio.Metadata(*(trailing or ()))
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details=details, debug_error_string=details)


class SimulatedChannel:
    """Connects at its first call, and reconnects at the first call after a break."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        self._network = network
        self._process = process
        self._address = address
        self._calls: dict[int, Call] = {}
        self._next = 0
        self._connection: Connection | None = None
        self._connecting = False
        self._failures = 0
        self._again_at = 0.0
        self._closed = False
        self._changed: list[asyncio.Future[None]] = []

    # Methods for the product.

    async def __aenter__(self) -> SimulatedChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(None)

    async def close(self, grace: float | None = None) -> None:
        """Cancel all calls, and close the connection."""
        self._closed = True
        for call in list(self._calls.values()):
            call.cancel()
        if self._connection is not None:
            self._connection.send(0, ("bye",))
            self._connection = None

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """See grpc.aio."""
        if self._closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        if self._connection is not None:
            return grpc.ChannelConnectivity.READY
        if try_to_connect:
            self._connect()
        if self._connecting:
            return grpc.ChannelConnectivity.CONNECTING
        return grpc.ChannelConnectivity.TRANSIENT_FAILURE if self._failures else grpc.ChannelConnectivity.IDLE

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """See grpc.aio."""
        while self.get_state() is last_observed_state:
            changed = asyncio.get_running_loop().create_future()
            self._changed.append(changed)
            await changed

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """See grpc.aio."""

        def begin(request: Any, timeout: float | None = None, **_: Any) -> Call:
            call = Call(self, method, request_serializer, response_deserializer, timeout)
            call.start(request)
            return call

        return begin

    unary_stream = unary_unary

    def stream_stream(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """See grpc.aio."""

        def begin(requests: Any = None, timeout: float | None = None, **_: Any) -> Call:
            call = Call(self, method, request_serializer, response_deserializer, timeout)
            call.start()
            if requests is not None:
                self._process.spawn(_write_all(call, requests))
            return call

        return begin

    stream_unary = stream_stream

    # Methods for calls.

    def begin(self, call: Call) -> int:
        """Register a call and return its number. The call is sent as soon as there is a connection."""
        self._next += 1
        if self._closed:
            raise grpc.aio.UsageError("Channel is closed.")
        self._calls[self._next] = call
        loop = self._network.loop
        if self._connection is not None:
            loop.call_soon(call.connected)
        elif self._connecting or loop.time() >= self._again_at:
            self._connect()
        else:
            loop.call_soon(call.end, _UNREACHED)
        return self._next

    def send(self, call: Call, message: tuple[Any, ...]) -> None:
        """Send a message of a call."""
        if self._connection is not None:
            self._connection.send(0, (call.number, *message))

    def ended(self, call: Call) -> None:
        """Remove a call that has ended."""
        self._calls.pop(call.number, None)

    # The channel is the client's end of the connection.

    def _connect(self) -> None:
        if not self._connecting and self._network.loop.time() >= self._again_at:
            self._connecting = True
            self._network.connect(self._process, self._address, self._settled)

    def _settled(self, connection: Connection | None) -> SimulatedChannel | None:
        self._connecting = False
        if self._closed:
            if connection is not None:
                connection.send(0, ("bye",))
            return None
        if connection is None:
            self._failures += 1
            self._again_at = self._network.loop.time() + min(_BACKOFF[1], _BACKOFF[0] * 2.0**self._failures)
            for call in list(self._calls.values()):
                call.end(_UNREACHED)
        else:
            self._failures = 0
            self._connection = connection
            for call in list(self._calls.values()):
                call.connected()
        self._tell()
        return self if connection is not None else None

    def received(self, message: tuple[Any, ...]) -> None:
        """See :class:`simulation.network.End`."""
        call = self._calls.get(message[0])
        if call is not None:
            call.received(message[1:])

    def broken(self) -> None:
        """See :class:`simulation.network.End`."""
        self._connection = None
        for call in list(self._calls.values()):
            call.end(_BROKEN)
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, []
        for one in changed:
            _settle(one)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _write_all(call: Call, requests: Any) -> None:
    try:
        async for request in requests:
            await call.write(request)
        await call.done_writing()
    except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
        return  # the call has ended: its reader gets the reason


def channel_of(network: Network, address: str) -> SimulatedChannel:
    """A channel of the process whose step is running."""
    process = PROCESS.get()
    assert process is not None, "the world itself has no channels"
    return SimulatedChannel(network, process, address)
