"""One Deliver stream to one worker, kept open and opened again (section 6.1.1)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import grpc

from millwheel.client.injector.messages import Send
from millwheel.rpc.channel import Backoff, open_channel
from millwheel.rpc.errors import heed_cancellation
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1.delivery_pb2_grpc import DeliveryServiceStub

__all__ = ["Link", "LinkEvents"]

log = logging.getLogger("millwheel.client")

_CONNECT_SECONDS: Final = 10.0
_HEALTHY_SECONDS: Final = 1.0
"""A stream that lasted so long counts as a first failure when it breaks."""


class LinkEvents(Protocol):
    """What a link tells its injector."""

    def connected(self, address: str) -> None: ...
    def disconnected(self, address: str) -> None: ...
    def broke(self, address: str, error: Exception) -> None: ...
    def answered(self, response: wire.DeliverResponse) -> None: ...


class Link:
    """Sends what it is given while it is connected; whatever is not answered is the core's to repeat."""

    def __init__(self, address: str, encode: Callable[[Send], wire.DeliverRequest], events: LinkEvents) -> None:
        self.address = address
        self._encode = encode
        self._events = events
        self._queue: deque[Send] = deque()
        self._ready = asyncio.Event()
        self._backoff = Backoff()
        self._task = asyncio.create_task(self._run(), name=f"deliveries to {address}")

    def send(self, send: Send) -> None:
        """Put a sending in line."""
        self._queue.append(send)
        self._ready.set()

    async def close(self) -> None:
        """Hang up."""
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
                # Whatever it is, it would be there again: better said than waited for.
                log.exception("deliveries to %s", self.address)
                self._events.broke(self.address, error)
                return
            heed_cancellation()
            failures = 1 if loop.time() - began > _HEALTHY_SECONDS else failures + 1
            log.log(
                logging.WARNING if failures == 3 else logging.DEBUG, "deliveries to %s: %s; again", self.address, why
            )
            await asyncio.sleep(self._backoff.delay(failures, random.random()))

    async def _converse(self, call: Any) -> None:
        """One stream, from its start to its end, which the reader or the writer may be first to meet."""
        self._events.connected(self.address)
        tasks = [asyncio.create_task(self._read(call)), asyncio.create_task(self._write(call))]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            # First: a read of a call that was never answered swallows its own cancellation, and would wait for ever.
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
