"""DeliveryService: receives records for the intervals that this process owns."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from millwheel.model.deliveries import Sender
from millwheel.model.incarnation import GroupId, is_injector
from millwheel.model.outbound import OutstandingSendings, answer_kind
from millwheel.rpc.deliveries import decode_delivery
from millwheel.rpc.errors import answering
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1.delivery_pb2_grpc import DeliveryServiceServicer
from millwheel.worker.process.host import RunningInterval
from millwheel.worker.process.quotas import RecordQuotas

__all__ = ["DeliveryService"]

_ACKED: Final = wire.DELIVERY_OUTCOME_ACKED
_PAUSE_SECONDS: Final = 0.005
"""Seconds between two messages of answers on one call.

A message costs both sides about 0.1 ms, as much as the work on a record. No result waits for an ACK. The delay only
affects when the sender drops its copy, and when its low watermark advances.
"""


class _StreamChannel:
    """Answers for one ``Deliver`` call, in the order of the replies. ACKs of whole batches are combined.

    Invariant: every waiting answer is for a batch that the sender still waits for. So the sender's window bounds them.
    """

    def __init__(self) -> None:
        self._answers: deque[wire.DeliverResponse] = deque()
        self._news = asyncio.Event()
        self._outstanding = OutstandingSendings[int]()
        self._ended = False

    def taken(self, token: int, records: int) -> None:
        """A batch has arrived, and is outstanding until its last answer."""
        self._outstanding.add(token, records, token)

    def ended(self) -> None:
        """No more batches will come."""
        self._ended = True
        self._news.set()

    def reply(
        self, token: int, outcome: wire.DeliveryOutcome.ValueType, remaining: Sequence[int], message: str
    ) -> None:
        """Send the answer for the batch ``token``."""
        last = self._answers[-1] if self._answers else None
        if last is not None and _plain(last) and outcome == _ACKED and not remaining and not message:
            last.also.append(token)
        else:
            response = wire.DeliverResponse(token=token, outcome=outcome, indexes=remaining, message=message)
            self._answers.append(response)
        self._outstanding.answered(token, answer_kind(outcome), remaining)
        self._news.set()

    async def next(self) -> wire.DeliverResponse | None:
        """The next message. None when the sender has closed its side and every batch is answered."""
        while not self._answers:
            if self._ended and not self._outstanding:
                return None
            self._news.clear()
            await self._news.wait()
        return self._answers.popleft()


def _plain(answer: wire.DeliverResponse) -> bool:
    """Whether the answer ACKs whole batches, and says no more."""
    return answer.outcome == _ACKED and not answer.indexes and not answer.message


class ReceivingInterval(RunningInterval, Protocol):
    """An interval that takes deliveries."""

    topology: str
    admitted: dict[str, int]
    """By sender: the sequencer for which the host has received a catalog that is new enough."""


class DeliveryService(DeliveryServiceServicer):
    """Passes batches to hosts. The senders' windows and each interval's admission bound it (G13)."""

    def __init__(
        self,
        hosted: Mapping[str, ReceivingInterval],
        prepare: Callable[[wire.PrepareRecordsRequest], Awaitable[wire.PrepareRecordsResponse]],
        quotas: RecordQuotas,
        knows: Callable[[Any, Sender], bool] = lambda host, sender: True,
    ) -> None:
        """
        Args:
            hosted: The intervals here, by journal.
            prepare: Answers ``PrepareRecords``.
            quotas: How many injected records the topologies may take.
            knows: Whether the host has received a catalog at least as new as the sender.
        """
        self._hosted = hosted
        self._knows = knows
        self._prepare = prepare
        self._quotas = quotas

    async def PrepareRecords(self, request: wire.PrepareRecordsRequest, context: Any) -> wire.PrepareRecordsResponse:
        """Keys and type checks for a sender without the consumer's code."""
        return await answering(context, lambda: self._prepare(request))

    async def Deliver(
        self, request_iterator: AsyncIterator[wire.DeliverRequest], context: Any
    ) -> AsyncIterator[wire.DeliverResponse]:
        """Receives deliveries and sends answers until the sender closes the call."""
        channel = _StreamChannel()
        reader = asyncio.get_running_loop().create_task(self._read(request_iterator, channel))
        try:
            while (response := await channel.next()) is not None:
                yield response
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[wire.DeliverRequest], channel: _StreamChannel) -> None:
        refused_since: dict[str, float] = {}
        try:
            async for request in requests:
                if self._quotas.buckets and is_injector(GroupId(request.sender.group)):
                    self._take_injected(request, channel, refused_since)
                else:
                    self._take(request, channel)
        finally:
            channel.ended()

    def _take_injected(
        self, request: wire.DeliverRequest, channel: _StreamChannel, refused_since: dict[str, float]
    ) -> None:
        """Take a batch of an injector, or refuse it for now because its topology's quota is used up.

        Invariant: each batch has an answer at once. Without one, an injector sends copies, which use up the quota, too.

        Args:
            request: The batch.
            channel: Takes the answer.
            refused_since: By topology: when this connection's injector began to wait.
        """
        if (hosted := self._hosted.get(request.journal)) is not None:
            topology, now = hosted.topology, time.monotonic()
            if topology in refused_since:
                self._quotas.waited(topology, now - refused_since.pop(topology))
            if self._quotas.wait(topology) > 0:
                refused_since[topology] = now
                channel.taken(request.token, len(request.keys))
                message = f"topology {topology!r} has used up its quota of records"
                channel.reply(request.token, wire.DELIVERY_OUTCOME_REFUSED_FULL, range(len(request.keys)), message)
                return
            self._quotas.taken(topology, len(request.keys))
        self._take(request, channel)

    def _take(self, request: wire.DeliverRequest, channel: _StreamChannel) -> None:
        channel.taken(request.token, len(request.keys))
        hosted = self._hosted.get(request.journal)
        if hosted is None:
            message = f"this worker does not own journal {request.journal!r}"
            channel.reply(request.token, wire.DELIVERY_OUTCOME_NOT_OWNER, (), message)
            return
        try:
            delivery = decode_delivery(request, channel)
        except ValueError as error:
            channel.reply(request.token, wire.DELIVERY_OUTCOME_INVALID, (), str(error))
            return
        sender = delivery.sender
        if hosted.admitted.get(sender.name) != sender.sequencer:
            if not self._knows(hosted.host, sender):
                message = "the catalog of this worker is older than the sender"
                channel.reply(request.token, wire.DELIVERY_OUTCOME_REFUSED_FULL, range(len(delivery.keys)), message)
                return
            hosted.admitted[sender.name] = sender.sequencer
        hosted.host.post(delivery)
