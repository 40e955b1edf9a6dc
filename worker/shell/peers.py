"""Sends batches to other workers: one ``Deliver`` stream per address, reopened when it breaks (section 6.1.1)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any, Final

import grpc

from millwheel.model.backoff import Backoff
from millwheel.rpc.deliveries import answered_tokens
from millwheel.rpc.errors import raise_if_cancelled
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1.delivery_pb2_grpc import DeliveryServiceStub
from millwheel.rpc.writing import writing
from millwheel.worker.messages import Delivery
from millwheel.worker.shell.channels import LocalChannel
from millwheel.worker.shell.outstanding import OutstandingBatches
from millwheel.worker.shell.wire import encode_delivery

__all__ = ["PeerConnection"]

log = logging.getLogger("millwheel.worker")

_MAX_QUEUED_BATCHES: Final = 1_000
"""Maximum number of batches that wait for one connection. Further ones are sent again later."""
_BACKOFF: Final = Backoff(0.05, 5.0)


class PeerConnection:
    """Batches for the intervals of one worker. Each batch has a number in this connection, which its answer names."""

    def __init__(self, address: str, open_channel: Callable[[str], grpc.aio.Channel]) -> None:
        self.address = address
        self._open_channel = open_channel
        self._queue: asyncio.Queue[wire.DeliverRequest] = asyncio.Queue(_MAX_QUEUED_BATCHES)
        self._senders: dict[int, tuple[LocalChannel, int]] = {}
        self._owed = OutstandingBatches()
        self._next = 1
        self._failures = 0
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, delivery: Delivery, channel: LocalChannel) -> None:
        """Queue a batch. ``channel`` receives the answer, or a request to send the batch again."""
        token = self._next
        self._next += 1
        try:
            self._queue.put_nowait(encode_delivery(delivery, token))
        except asyncio.QueueFull:
            channel.later(delivery.token, full=True)
            return
        self._senders[token] = (channel, delivery.token)
        self._owed.add(token, len(delivery.keys))

    async def close(self) -> None:
        """End the connection. Unanswered batches are sent again to the present owners of their keys."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._fail_open()

    async def _run(self) -> None:
        while True:
            try:
                async with self._open_channel(self.address) as connection:
                    stub: Any = DeliveryServiceStub(connection)
                    await self._converse(stub.Deliver())
            except grpc.aio.AioRpcError as error:
                log.info("deliveries to %s: %s; connecting again", self.address, error.details())
            except Exception:
                log.exception("deliveries to %s failed; connecting again", self.address)
            self._fail_open()
            raise_if_cancelled()
            self._failures += 1
            await asyncio.sleep(_BACKOFF.delay(self._failures, random.random()))

    async def _converse(self, call: Any) -> None:
        """Send queued batches while answers come."""
        async with writing(call, self._write(call)):
            async for response in call:
                self._failures = 0
                for token in answered_tokens(response):
                    self._answer(token, response)

    async def _write(self, call: Any) -> None:
        while True:
            await call.write(await self._queue.get())

    def _answer(self, number: int, response: wire.DeliverResponse) -> None:
        """The answer for the batch with ``number`` on this connection."""
        known = self._senders.get(number)
        if known is None:
            return
        channel, token = known
        if self._owed.answered(number, response.outcome, response.indexes):
            del self._senders[number]
        channel.reply(token, response.outcome, response.indexes, response.message)

    def _fail_open(self) -> None:
        """The stream has ended: unanswered batches are sent again, with the same ids and bytes."""
        while not self._queue.empty():
            self._queue.get_nowait()
        for channel, token in self._senders.values():
            channel.later(token)
        self._senders.clear()
        self._owed.clear()
