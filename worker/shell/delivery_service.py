"""DeliveryService: records come in for the intervals that this process owns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1.delivery_pb2_grpc import DeliveryServiceServicer
from millwheel.worker.shell.host import CoreHost
from millwheel.worker.shell.owed import Owed
from millwheel.worker.shell.wire import decode_delivery

__all__ = ["DeliveryService"]


class _StreamChannel:
    """Answers for one Deliver call; they leave in the order in which they were given.

    The call ends (``None``) when the sender has said that no more batches come and every batch is answered.
    """

    def __init__(self) -> None:
        self.answers: asyncio.Queue[wire.DeliverResponse | None] = asyncio.Queue()
        self._owed = Owed()
        self._ended = False

    def taken(self, token: int, records: int) -> None:
        """A batch has come: an answer is owed."""
        self._owed.add(token, records)

    def ended(self) -> None:
        """No more batches come."""
        self._ended = True
        if not self._owed:
            self.answers.put_nowait(None)

    def reply(
        self, token: int, outcome: wire.DeliveryOutcome.ValueType, remaining: Sequence[int], message: str
    ) -> None:
        """Send the answer for the batch ``token``."""
        self.answers.put_nowait(wire.DeliverResponse(token=token, outcome=outcome, indexes=remaining, message=message))
        if self._owed.answered(token, outcome, remaining) and self._ended and not self._owed:
            self.answers.put_nowait(None)


class DeliveryService(DeliveryServiceServicer):
    """Hands batches to hosts. Bounded by the senders' windows and by what each interval's intake admits (G13)."""

    def __init__(self, find: Callable[[str], CoreHost | None]) -> None:
        self._find = find

    async def Deliver(
        self, request_iterator: AsyncIterator[wire.DeliverRequest], context: Any
    ) -> AsyncIterator[wire.DeliverResponse]:
        """Deliveries one way, answers the other, until the sender hangs up."""
        channel = _StreamChannel()
        reader = asyncio.get_running_loop().create_task(self._read(request_iterator, channel))
        try:
            while (response := await channel.answers.get()) is not None:
                yield response
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[wire.DeliverRequest], channel: _StreamChannel) -> None:
        try:
            async for request in requests:
                self._take(request, channel)
        finally:
            channel.ended()

    def _take(self, request: wire.DeliverRequest, channel: _StreamChannel) -> None:
        channel.taken(request.token, len(request.keys))
        host = self._find(request.journal)
        if host is None:
            message = f"this worker does not own journal {request.journal!r}"
            channel.reply(request.token, wire.DELIVERY_OUTCOME_NOT_OWNER, (), message)
            return
        try:
            delivery = decode_delivery(request, channel)
        except ValueError as error:
            channel.reply(request.token, wire.DELIVERY_OUTCOME_INVALID, (), str(error))
            return
        host.post(delivery)
