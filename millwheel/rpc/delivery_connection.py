"""The client of the Deliver call: one stream to one worker, which is reopened after failures (section 6.1.1)."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import grpc

from millwheel.model.backoff import Backoff
from millwheel.rpc.cancelling import raise_if_cancelled
from millwheel.rpc.channel import open_channel
from millwheel.rpc.deliveries import DeliveryQueue
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1.delivery_pb2_grpc import DeliveryServiceStub

__all__ = ["DeliveryConnection", "DeliveryEvents"]

log = logging.getLogger("millwheel.rpc")

CONNECT_SECONDS: Final = 10.0
_BACKOFF: Final = Backoff()
HEALTHY_SECONDS: Final = 1.0
"""If an open stream breaks after more than this time, the failure count starts at 1 again."""

ItemT = TypeVar("ItemT")


class DeliveryEvents(Protocol):
    """What a connection reports to the sender that owns it."""

    def connected(self, address: str) -> None:
        """A stream is open."""

    def disconnected(self, address: str) -> None:
        """The stream has ended, or could not be opened. Items without an answer may or may not have arrived."""

    def broke(self, address: str, error: Exception) -> bool:
        """An unknown error has ended the stream. Returns whether to connect again."""

    def answered(self, response: wire.DeliverResponse) -> None:
        """The worker has answered one or more deliveries."""


class DeliveryConnection(DeliveryQueue[ItemT]):
    """Keeps a stream to one worker open, and reports its answers. It repeats nothing: that is the task of its owner."""

    def __init__(
        self,
        address: str,
        encode: Callable[[ItemT], wire.DeliverRequest],
        events: DeliveryEvents,
        connect: Callable[[str], grpc.aio.Channel] = open_channel,
    ) -> None:
        """Start to connect.

        Args:
            address: The worker's address.
            encode: Makes the message for an item, when it is sent.
            events: Receives what happens.
            connect: Opens a channel to an address.
        """
        super().__init__(encode, events.answered)
        self.address = address
        self._events = events
        self._connect = connect
        self._opened_at = math.inf
        """When the current stream was opened, by the loop's clock. Infinite before that."""
        self._loop = asyncio.get_running_loop()
        self._broken_since: float | None = None
        self._closed = False
        self._task = asyncio.create_task(self._run(), name=f"deliveries to {address}")

    @property
    def first_unwritten(self) -> ItemT | None:
        """The oldest item that is not written to the stream yet. None if there is none."""
        return self._queue[0] if self._queue else None

    @property
    def broken_seconds(self) -> float:
        """For how long the worker has not been reached; 0: it is. Any thread may ask."""
        since = self._broken_since
        return 0.0 if since is None else self._loop.time() - since

    async def close(self) -> None:
        """Close the connection. From this call on it reports nothing: a new connection may have its address."""
        self._closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            self._opened_at = math.inf
            try:
                await self._one_stream()
                why = "the worker ended the stream"
            except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
                why = error.details() or "no details" if isinstance(error, grpc.aio.AioRpcError) else str(error)
            except (TimeoutError, ConnectionError) as error:
                why = str(error)
            except asyncio.CancelledError:
                raise_if_cancelled()
                why = "gRPC has cancelled the call"
            except Exception as error:
                raise_if_cancelled()  # what the end of a channel raises has replaced the cancellation
                log.exception("deliveries to %s", self.address)
                if not self._events.broke(self.address, error):
                    return
                why = repr(error)
            raise_if_cancelled()
            failures = 1 if loop.time() - self._opened_at > HEALTHY_SECONDS else failures + 1
            log.log(
                logging.WARNING if failures == 3 else logging.DEBUG, "deliveries to %s: %s; again", self.address, why
            )
            await asyncio.sleep(_BACKOFF.delay(failures, random.random()))

    async def _one_stream(self) -> None:
        """Connect, and run one stream until it ends."""
        try:
            async with self._connect(self.address) as channel:
                await _until_ready(channel)
                self._broken_since = None
                self._opened_at = asyncio.get_running_loop().time()
                stub: Any = DeliveryServiceStub(channel)
                await self._converse(stub.Deliver())
        finally:
            if self._broken_since is None:
                self._broken_since = self._loop.time()
            self.clear()
            if not self._closed:
                self._events.disconnected(self.address)

    async def _converse(self, call: Any) -> None:
        """Run one stream until its reader or its writer ends."""
        self._events.connected(self.address)
        tasks = [asyncio.create_task(self.read(call)), asyncio.create_task(self.write(call))]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            # The call is cancelled first: a pending read of an unanswered call swallows the cancellation of its task,
            # and would never end.
            call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _until_ready(channel: grpc.aio.Channel) -> None:
    """Wait for a connection.

    Raises:
        ConnectionError: The address does not accept connections now.
        TimeoutError: There is no connection in time.
    """
    failed = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                if state in failed:
                    raise ConnectionError("no connection")
                await channel.wait_for_state_change(state)
    except TimeoutError:
        raise TimeoutError(f"no connection within {CONNECT_SECONDS:g} s") from None
