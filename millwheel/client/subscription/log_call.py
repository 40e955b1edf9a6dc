"""One call to the owner of a stream's log: the subscriber's requests and ACKs, and the log's responses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import grpc

from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.rpc.v1.subscription_pb2_grpc import SubscriptionServiceStub

__all__ = ["MAX_SILENCE_SECONDS", "LogCall"]

MAX_SILENCE_SECONDS: Final = 3.0
"""Seconds without a response before a request to the master checks whether the log has moved.

A paused or unreachable owner does not end the call. Another worker has the log long before gRPC detects the failure."""


class LogCall:
    """One call. It is not used any more after a failure."""

    def __init__(self, stream: str, address: str, moved: Callable[[str], Awaitable[bool]]) -> None:
        """``moved``: whether another worker than the one at an address owns the log now."""
        self.ended = False
        """Whether the call was cancelled."""
        self._stream = stream
        self._address = address
        self._moved = moved
        self._has_moved = False
        """Whether the call was cancelled because the log has moved."""
        self._waits_since: float | None = None
        """Since when the current reader waits for a response, by the loop's clock. None while there is no reader."""
        self._channel = open_channel(address)
        self._call: grpc.aio.StreamStreamCall[wire.SubscribeRequest, wire.SubscribeResponse] = SubscriptionServiceStub(
            self._channel
        ).Subscribe()  # type: ignore[call-arg]  # the stubs know no call that is written to
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """End the call."""
        self._watching.cancel()
        self._call.cancel()
        await self._channel.close(None)

    async def read(self) -> wire.SubscribeResponse:
        """The next response.

        Raises:
            RequestError: The call has ended.
        """
        reader = _current_task()
        before = reader.cancelling()
        try:
            self._waits_since = asyncio.get_running_loop().time()
            response = await self._call.read()
            if isinstance(response, wire.SubscribeResponse):
                return response
            code = await self._call.code()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, f"the log of stream {self._stream!r}") from error
        except asyncio.CancelledError:
            # gRPC cancels the call together with its reader. It also shows the end of the call as a cancellation.
            self.ended = True
            if not self._has_moved or reader.cancelling() > before:
                raise
            raise RequestError(FailureCode.UNAVAILABLE, f"the log of stream {self._stream!r} has moved", "") from None
        finally:
            self._waits_since = None
        raise RequestError(FailureCode.UNAVAILABLE, f"the log of stream {self._stream!r} ended the call ({code})")

    async def write(self, request: wire.SubscribeRequest) -> None:
        """Send a request. If the call is broken, nothing is sent: the next call's first requests say the same."""
        if self.ended:
            return
        writer = _current_task()
        before = writer.cancelling()
        try:
            await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return
        except asyncio.CancelledError:
            self.ended = True
            if not self._has_moved or writer.cancelling() > before:
                raise

    async def begin(self, requests: Iterable[wire.SubscribeRequest]) -> None:
        """Send the first requests."""
        try:
            # A call that has ended cannot be written to. Its reader gets the reason.
            with suppress(asyncio.InvalidStateError):
                for request in requests:
                    await self._call.write(request)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, f"the log of stream {self._stream!r}") from error
        except asyncio.CancelledError:
            self.ended = True
            raise

    async def _watch(self) -> None:
        """End the call if its reader has waited long and the log has moved (7.1, figure 12).

        There is one such task for each call, instead of one timer for each response.
        """
        loop = asyncio.get_running_loop()
        while True:
            since = self._waits_since
            last_received = loop.time() if since is None else since
            await asyncio.sleep(last_received + MAX_SILENCE_SECONDS - loop.time())
            if since is None or self._waits_since != since:
                continue
            if await self._moved(self._address) and self._waits_since == since:
                self._has_moved = True
                self._call.cancel()
                return
            await asyncio.sleep(MAX_SILENCE_SECONDS)


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task
