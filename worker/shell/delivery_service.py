"""DeliveryService: records come in for the intervals that this process owns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

from millwheel.rpc.errors import answering
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1.delivery_pb2_grpc import DeliveryServiceServicer
from millwheel.worker.shell.host import CoreHost
from millwheel.worker.shell.owed import Owed
from millwheel.worker.shell.wire import decode_delivery

__all__ = ["DeliveryService"]


_PAUSE: Final = 0.005
"""Seconds from one message of answers to the next on the same call.

A message costs both sides about a tenth of a millisecond, as much as the work on a record, and nobody's result waits
for an ACK: it lets the sender forget, and its low watermark pass, this much later."""


class _StreamChannel:
    """Answers for one Deliver call; they leave in the order in which they were given, ACKs of whole batches together.

    No more of them wait than batches are owed an answer, which the sender's window bounds.
    """

    def __init__(self) -> None:
        self._answers: deque[wire.DeliverResponse] = deque()
        self._news = asyncio.Event()
        self._owed = Owed()
        self._ended = False

    def taken(self, token: int, records: int) -> None:
        """A batch has come: an answer is owed."""
        self._owed.add(token, records)

    def ended(self) -> None:
        """No more batches come."""
        self._ended = True
        self._news.set()

    def reply(
        self, token: int, outcome: wire.DeliveryOutcome.ValueType, remaining: Sequence[int], message: str
    ) -> None:
        """Send the answer for the batch ``token``."""
        last = self._answers[-1] if self._answers else None
        if last is not None and _whole(last.outcome, last.indexes) and _whole(outcome, remaining):
            last.also.append(token)
        else:
            response = wire.DeliverResponse(token=token, outcome=outcome, indexes=remaining, message=message)
            self._answers.append(response)
        self._owed.answered(token, outcome, remaining)
        self._news.set()

    async def next(self) -> wire.DeliverResponse | None:
        """What to send next; None when the sender has said that no more batches come, and every batch is answered."""
        while not self._answers:
            if self._ended and not self._owed:
                return None
            self._news.clear()
            await self._news.wait()
        return self._answers.popleft()


def _whole(outcome: wire.DeliveryOutcome.ValueType, remaining: Sequence[int]) -> bool:
    """Whether the answer is an ACK of all that there is to a batch."""
    return outcome == wire.DELIVERY_OUTCOME_ACKED and not remaining


class DeliveryService(DeliveryServiceServicer):
    """Hands batches to hosts. Bounded by the senders' windows and by what each interval's intake admits (G13)."""

    def __init__(
        self,
        find: Callable[[str], CoreHost | None],
        prepare: Callable[[wire.PrepareRecordsRequest], Awaitable[wire.PrepareRecordsResponse]],
    ) -> None:
        """``find``: the host of a journal. ``prepare``: answers PrepareRecords, or raises RequestError."""
        self._find = find
        self._prepare = prepare

    async def PrepareRecords(self, request: wire.PrepareRecordsRequest, context: Any) -> wire.PrepareRecordsResponse:
        """Keys and type checks for a sender that does not have the consumer's code."""
        return await answering(context, lambda: self._prepare(request))

    async def Deliver(
        self, request_iterator: AsyncIterator[wire.DeliverRequest], context: Any
    ) -> AsyncIterator[wire.DeliverResponse]:
        """Deliveries one way, answers the other, until the sender hangs up."""
        channel = _StreamChannel()
        reader = asyncio.get_running_loop().create_task(self._read(request_iterator, channel))
        try:
            while (response := await channel.next()) is not None:
                yield response
                await asyncio.sleep(_PAUSE)
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
