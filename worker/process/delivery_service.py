"""DeliveryService: receives records for the intervals that this process owns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from millwheel.model.deliveries import Sender
from millwheel.model.incarnation import GroupId, is_injector
from millwheel.model.outbound import OutstandingAttempts, answer_kind
from millwheel.rpc.columns import has_columns
from millwheel.rpc.deliveries import decode_delivery, journal_of, record_count
from millwheel.rpc.errors import abort, answering, as_request_error
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


_LONGEST_WAIT_SECONDS: Final = 0.05
"""Longest time for which a connection is not read because of a quota. If a longer wait is due, the batch is refused.

What is behind it on the connection waits, too: of other topologies, and all that the injector has in flight. It takes
batches as lost that have no answer for 30 s, and sends them again.
"""


class _StreamChannel:
    """Answers for one ``Deliver`` call, in the order of the replies. ACKs of whole batches are combined.

    Invariant: every waiting answer is for a batch that the sender still waits for. So the sender's window bounds them.
    """

    def __init__(self) -> None:
        self._answers: deque[wire.DeliverResponse] = deque()
        self._changed = asyncio.Event()
        self._outstanding = OutstandingAttempts[int]()
        self._ended = False
        self._error: Exception | None = None

    def taken(self, token: int, records: int) -> None:
        """A batch has arrived, and is outstanding until its last answer."""
        self._outstanding.add(token, records, token)

    def ended(self, error: Exception | None = None) -> None:
        """No more batches will come. ``error``: a batch was taken that will have no answer."""
        self._ended, self._error = True, error
        self._changed.set()

    def reply(self, token: int, outcome: wire.DeliveryOutcome.ValueType, indexes: Sequence[int], message: str) -> None:
        """Send the answer for the batch ``token``."""
        last = self._answers[-1] if self._answers else None
        if last is not None and _plain(last) and outcome == _ACKED and not indexes and not message:
            last.also.append(token)
        else:
            response = wire.DeliverResponse(token=token, outcome=outcome, indexes=indexes, message=message)
            self._answers.append(response)
        self._outstanding.answered(token, answer_kind(outcome), indexes)
        self._changed.set()

    async def next(self) -> wire.DeliverResponse | None:
        """The next message. None when the sender has closed its side and every batch is answered.

        Raises:
            Exception: The error of ``ended``.
        """
        while not self._answers:
            if self._error is not None:
                raise self._error
            if self._ended and not self._outstanding:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._answers.popleft()


def _plain(answer: wire.DeliverResponse) -> bool:
    """Whether the answer ACKs whole batches, and says no more."""
    return answer.outcome == _ACKED and not answer.indexes and not answer.message


class ReceivingInterval(RunningInterval, Protocol):
    """An interval that takes deliveries."""

    topology: str
    known_senders: dict[str, int]
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
        except Exception as error:
            await abort(context, as_request_error(error))
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[wire.DeliverRequest], channel: _StreamChannel) -> None:
        """Take what comes, until the sender has no more.

        Invariant: a batch that is not answered waits at its interval. Who could break it: an error here. So such an
        error ends the call, and the sender sends again on another one.
        """
        fault: Exception | None = None
        try:
            async for request in requests:
                try:
                    injected = self._quotas.buckets and is_injector(GroupId(request.sender.group))
                    if not injected or await self._wait_for_quota(request, channel):
                        self._take(request, channel)
                except Exception as error:
                    fault = error
                    break
        finally:
            channel.ended(fault)

    async def _wait_for_quota(self, request: wire.DeliverRequest, channel: _StreamChannel) -> bool:
        """Wait until the interval's topology may take the records of an injector. False: they were refused instead.

        Invariant: each batch has an answer soon (G8). Who could break it: a connection that is not read for long.
        """
        hosted, quotas, records = self._hosted.get(journal_of(request)), self._quotas, record_count(request)
        if hosted is None:
            return True
        topology, now = hosted.topology, asyncio.get_running_loop().time
        until = now() + _LONGEST_WAIT_SECONDS
        while (seconds := quotas.wait(topology)) > 0:
            quotas.waits(topology)
            if seconds < until - now():
                await asyncio.sleep(seconds)
                continue
            channel.taken(request.token, records)
            message = f"topology {topology!r} has used up its quota of records for now"
            channel.reply(request.token, wire.DELIVERY_OUTCOME_REFUSED_FULL, range(records), message)
            return False
        quotas.taken(topology, records)
        return True

    def _take(self, request: wire.DeliverRequest, channel: _StreamChannel) -> None:
        channel.taken(request.token, record_count(request))
        hosted = self._hosted.get(journal_of(request))
        if hosted is None:
            message = f"this worker does not own journal {journal_of(request)!r}"
            channel.reply(request.token, wire.DELIVERY_OUTCOME_NOT_OWNER, (), message)
            return
        if request.HasField("columns") and not has_columns():
            message = "records as columns need pyarrow at this worker: install MillWheel with the extra arrow there"
            channel.reply(request.token, wire.DELIVERY_OUTCOME_NO_COLUMNS, (), message)
            return
        try:
            delivery = decode_delivery(request, channel)
        except ValueError as error:
            channel.reply(request.token, wire.DELIVERY_OUTCOME_INVALID, (), str(error))
            return
        sender = delivery.sender
        if hosted.known_senders.get(sender.name) != sender.sequencer:
            if not self._knows(hosted.host, sender):
                message = "the catalog of this worker is older than the sender"
                channel.reply(request.token, wire.DELIVERY_OUTCOME_REFUSED_FULL, range(len(delivery.keys)), message)
                return
            hosted.known_senders[sender.name] = sender.sequencer
        hosted.host.post(delivery)
