"""The server side of a simulated gRPC: it calls the product's real servicers as ``grpc.aio`` does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc

from simulation.calls import WINDOW
from simulation.network import Connection, Network
from simulation.process import Process

__all__ = ["SimulatedServer"]


class SimulatedServer:
    """A server of one process at ``address``. Services are added as to a real server."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        self.process = process
        self._network = network
        self._address = address
        self._handlers: list[Any] = []
        self._ends: dict[_ServerEnd, None] = {}

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """See grpc.aio.Server."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Do nothing: calls are found by the generic handlers."""

    def start(self) -> None:
        """Accept connections."""
        self._network.listeners[self._address] = self

    def stop(self) -> None:
        """Accept no more connections, and break the existing ones."""
        if self._network.listeners.get(self._address) is self:
            del self._network.listeners[self._address]
        for end in list(self._ends):
            end.connection.breaks()

    def accept(self, connection: Connection) -> _ServerEnd:
        """See :class:`simulation.network.Listener`."""
        end = _ServerEnd(self, connection)
        self._ends[end] = None
        return end

    def gone(self, end: _ServerEnd) -> None:
        """Remove a connection that is broken."""
        self._ends.pop(end, None)

    def handler(self, method: str) -> Any:
        """The handler of a method; None if there is none."""
        details = SimpleNamespace(method=method, invocation_metadata=())
        found = (handler.service(details) for handler in self._handlers)
        return next((one for one in found if one is not None), None)


class _ServerEnd:
    """A connection, with the calls that came over it."""

    def __init__(self, server: SimulatedServer, connection: Connection) -> None:
        self.server = server
        self.connection = connection
        self.calls: dict[int, _ServedCall] = {}

    def received(self, message: tuple[Any, ...]) -> None:
        """See :class:`simulation.network.End`."""
        if message[0] == "bye":
            self.broken()
            self.connection.ends[0] = self.connection.ends[1] = None
            self.connection.breaks()
            return
        number, kind, *rest = message
        if kind == "start":
            self.calls[number] = _ServedCall(self, number, *rest)
        elif number in self.calls:
            self.calls[number].received(kind, *rest)

    def broken(self) -> None:
        """See :class:`simulation.network.End`."""
        self.server.gone(self)
        for call in list(self.calls.values()):
            call.cancel()
        self.calls.clear()


class _Context:
    """The context that a servicer gets for its call."""

    def __init__(self, call: _ServedCall) -> None:
        self._call = call

    def auth_context(self) -> dict[str, list[bytes]]:
        """Nothing: there is no TLS."""
        return {}

    def peer(self) -> str:
        """Return the caller's address, as gRPC has it. All callers have one."""
        return "ipv4:simulated:1"

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """End the call with an error."""
        self._call.finish(code, details, trailing_metadata)
        raise grpc.aio.AbortError("Locally aborted.")


class _ServedCall:
    """One call, at the server."""

    def __init__(self, end: _ServerEnd, number: int, method: str, request: bytes | None, client: Any) -> None:
        self._end = end
        self._number = number
        self._client = client
        self._requests: deque[bytes] = deque(() if request is None else (request,))
        self._closed = request is not None
        self._waiter: asyncio.Future[None] | None = None
        self._finished = False
        self._handler = end.server.handler(method)
        self._task = end.server.process.spawn(self._run(method), name=method)

    def received(self, kind: str, *rest: Any) -> None:
        """Receive a message of the client."""
        if kind == "message":
            self._requests.append(rest[0])
        elif kind == "end":
            self._closed = True
        else:
            self.cancel()
            self._end.calls.pop(self._number, None)
            return
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def cancel(self) -> None:
        """The client has closed the connection or cancelled the call."""
        self._finished = True
        self._task.cancel()

    def finish(self, code: grpc.StatusCode, details: str, trailing: Any = ()) -> None:
        """Report the call's status, once."""
        if not self._finished:
            self._finished = True
            self._end.calls.pop(self._number, None)
            self._end.connection.send(1, (self._number, "status", (code, details, trailing)))

    async def _run(self, method: str) -> None:
        handler = self._handler
        if handler is None:
            self.finish(grpc.StatusCode.UNIMPLEMENTED, f"Method not found: {method}")
            return
        try:
            await self._serve(handler)
            self.finish(grpc.StatusCode.OK, "")
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            self.finish(grpc.StatusCode.CANCELLED, "CANCELLED")
            raise
        except Exception as error:
            self.finish(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")

    async def _serve(self, handler: Any) -> None:
        context = _Context(self)
        requests: Any = self._read(handler.request_deserializer)
        request = requests if handler.request_streaming else await anext(requests)
        behaviour = (
            (handler.stream_stream if handler.request_streaming else handler.unary_stream)
            if handler.response_streaming
            else (handler.stream_unary if handler.request_streaming else handler.unary_unary)
        )
        answer = behaviour(request, context)
        if handler.response_streaming:
            async for response in answer:
                self._send(handler.response_serializer(response))
        else:
            self._send(handler.response_serializer(await answer))

    def _send(self, message: bytes) -> None:
        if not self._finished:
            self._end.connection.send(1, (self._number, "message", message))

    async def _read(self, decode: Any) -> AsyncIterator[Any]:
        while True:
            while self._requests:
                self._client.unread -= 1
                if self._client.unread == WINDOW:
                    self._end.connection.send(1, (self._number, "window"))
                yield decode(self._requests.popleft())
            if self._closed:
                return
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
