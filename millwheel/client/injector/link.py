"""One Deliver stream to one worker. It is reopened after failures (section 6.1.1)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import grpc

from millwheel.client.injector.messages import SendBatch
from millwheel.model.backoff import Backoff
from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import raise_if_cancelled
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1.delivery_pb2_grpc import DeliveryServiceStub

__all__ = ["InjectorConnection", "LinkEvents"]

log = logging.getLogger("millwheel.client")

_CONNECT_SECONDS: Final = 10.0
_HEALTHY_SECONDS: Final = 1.0
"""If a stream breaks after more than this time, the failure count starts at 1 again."""


class LinkEvents(Protocol):
    """What a connection reports to its injector."""

    def connected(self, address: str) -> None: ...
    def disconnected(self, address: str) -> None: ...
    def broke(self, address: str, error: Exception) -> None: ...
    def answered(self, response: wire.DeliverResponse) -> None: ...


class InjectorConnection:
    """Sends batches to one worker while it is connected. Repeating unanswered batches is the core's task."""

    def __init__(self, address: str, encode: Callable[[SendBatch], wire.DeliverRequest], events: LinkEvents) -> None:
        self.address = address
        self._encode = encode
        self._events = events
        self._queue: deque[SendBatch] = deque()
        self._ready = asyncio.Event()
        self._backoff = Backoff()
        self._task = asyncio.create_task(self._run(), name=f"deliveries to {address}")

    def send(self, send: SendBatch) -> None:
        """Queue a batch for sending."""
        self._queue.append(send)
        self._ready.set()

    async def close(self) -> None:
        """Close the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            try:
                async with open_channel(self.address) as channel:
                    async with asyncio.timeout(_CONNECT_SECONDS):
                        await channel.channel_ready()
                    began = loop.time()
                    stub: Any = DeliveryServiceStub(channel)
                    await self._converse(stub.Deliver())
                why = "the worker ended the stream"
            except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
                why = error.details() or "no details" if isinstance(error, grpc.aio.AioRpcError) else str(error)
            except TimeoutError:
                why = f"no connection within {_CONNECT_SECONDS:g} s"
            except Exception as error:
                # A reconnect would meet the same unknown error again. So it is reported instead.
                log.exception("deliveries to %s", self.address)
                self._events.broke(self.address, error)
                return
            raise_if_cancelled()
            failures = 1 if loop.time() - began > _HEALTHY_SECONDS else failures + 1
            log.log(
                logging.WARNING if failures == 3 else logging.DEBUG, "deliveries to %s: %s; again", self.address, why
            )
            await asyncio.sleep(self._backoff.delay(failures, random.random()))

    async def _converse(self, call: Any) -> None:
        """Run one stream until its reader or its writer ends."""
        self._events.connected(self.address)
        tasks = [asyncio.create_task(self._read(call)), asyncio.create_task(self._write(call))]
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
            self._queue.clear()
            self._events.disconnected(self.address)

    async def _read(self, call: Any) -> None:
        while isinstance(response := await call.read(), wire.DeliverResponse):
            self._events.answered(response)

    async def _write(self, call: Any) -> None:
        while True:
            while self._queue:
                await call.write(self._encode(self._queue.popleft()))
            self._ready.clear()
            await self._ready.wait()
