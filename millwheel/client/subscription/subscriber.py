"""A subscriber of one stream: its options, its position and its ACKs (section 4.3).

How it reads is in ``reading.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from enum import Enum
from types import TracebackType
from typing import Any
from uuid import uuid4

from millwheel.client.control import DEFAULT_ADDRESS, ControlClient
from millwheel.client.measured import SUBSCRIPTIONS
from millwheel.client.subscription.acks import AckSender
from millwheel.client.subscription.log_link import LogLink
from millwheel.client.subscription.measures import SubscriptionMeasures
from millwheel.client.subscription.reading import Batch, LogReader
from millwheel.client.tracing import client_tracing
from millwheel.model.traces import Operation, TraceContext
from millwheel.rpc.traces import read_traces
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.codecs import codec_for

__all__ = ["From", "Subscription"]


class From(Enum):
    """Where a new cursor or a tail begins."""

    OLDEST = wire.SUBSCRIBE_FROM_OLDEST
    """At the oldest record in the log."""
    NOW = wire.SUBSCRIBE_FROM_NOW


class Subscription(LogReader):
    """One subscriber of one stream. Use it with ``async with``, and iterate over it for batches.

    It has many attributes: half of them are its options.

    Args:
        stream: The full name of the stream, or its short name if no other topology has a stream of that name.
        cursor: The name of a durable cursor. Empty for a tail, which keeps no position.
        offset: Where a tail begins, instead of ``start``. If the log does not keep it any more: at the oldest record.
        start: Where a new cursor or a tail begins. The default is the oldest record for a cursor, and now for a tail.
        record_type: The type to decode values as, with the SDK's codecs. None leaves values as bytes.
        decode: A function that decodes values. ``record_type`` overrides it.
        address: A master's address, as host or host:port; several with commas between them.
        window: The most records that are sent beyond the last ACK, for cursors. 0 uses the log's default.
        auto_ack: Whether to ACK a batch when the next batch is requested.
        until_end: Whether to end the iteration when the stream has ended and every record is delivered.
        watermarks: Whether to deliver batches without records when only the watermark advances.
        incarnation: The log that is meant. Empty: the one that is there first. Another log of the stream is an error
            (reason ``STREAM_LOG_REPLACED``): its offsets begin at 0 again.
        patience: Seconds to look for a log that cannot be reached. The logger ``millwheel.client`` says what the
            subscription waits for: after 3 seconds, then every 30.

    Raises:
        RequestError: By the iteration, for a failure that does not pass: the stream is unknown, or the cursor was
            deleted or taken over by another subscriber (reason ``CURSOR_TAKEN_OVER``).
    """

    def __init__(
        self,
        stream: str,
        *,
        cursor: str = "",
        start: From | None = None,
        offset: int | None = None,
        record_type: Any = None,
        decode: Callable[[bytes], Any] | None = None,
        address: str = DEFAULT_ADDRESS,
        window: int = 0,
        auto_ack: bool = False,
        until_end: bool = False,
        watermarks: bool = False,
        incarnation: str = "",
        patience: float = 60.0,
    ) -> None:
        if record_type is not None:
            decode = codec_for(record_type, f"stream {stream!r}").decode
        self._link = LogLink(ControlClient(address), stream, patience, incarnation)
        super().__init__(self._link, decode)
        self.stream = stream
        self.cursor = cursor
        self._position = offset if not cursor else None
        self._start = start or (From.OLDEST if cursor else From.NOW)
        self._window = window
        self._id = uuid4().hex
        self._auto_ack = auto_ack
        self._until_end = until_end
        self._watermarks = watermarks
        self._acks = AckSender(self._send_ack, window)
        self._measures: SubscriptionMeasures | None = None
        if client_tracing() is not None:
            self._take = self._take_with_traces  # type: ignore[method-assign]  # no other subscription takes this way

    async def __aenter__(self) -> Subscription:
        """Wait until the log has answered. From then on the cursor exists, or the tail has its start."""
        try:
            await self._receive()
        except BaseException:
            await self.close()
            raise
        self._measures = SubscriptionMeasures(self, (self.spec.name or self.stream, self.cursor))
        SUBSCRIPTIONS.enter(self._measures)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the subscription. ACKs that were not flushed may be lost: their records are then delivered again.

        They are lost if the iteration was cancelled: gRPC ends the call together with the task that reads it.
        """
        if self._measures is not None:
            SUBSCRIPTIONS.leave(self._measures)
        try:
            await self._acks.close()
        finally:
            await self._link.close()

    # Reading.

    async def below(self, offset: int) -> AsyncIterator[Batch]:
        """The batches from here to an offset. It also ends if the log does not keep these records any more."""
        while self.position < offset:
            if self._ahead:
                yield await anext(self)
            else:
                await self._receive()

    def _first_requests(self) -> list[wire.SubscribeRequest]:
        """The first requests of a new call: the position, and the last ACK, which the previous call may have lost."""
        start = wire.SubscribeStart(
            stream=self.stream, cursor=self.cursor, begin=self._start.value, window=self._window
        )
        start.subscriber_id = self._id
        if self._position is not None:
            start.resume_offset = self._position
            start.cursor_life = self._life
        requests = [wire.SubscribeRequest(start=start)]
        if self._acks.newest > self._durable:
            requests.append(_ack(self._acks.newest))
        self._acks.sent(self._acks.newest)
        return requests

    def _take_with_traces(self, response: wire.SubscribeResponse) -> None:
        super()._take(response)
        if not response.traces or not self._ahead or (tracing := client_tracing()) is None:
            return
        batch, contexts = self._ahead[-1], dict[int, TraceContext]()
        spans = tracing.spans.about({"millwheel.cursor": self.cursor} if self.cursor else {})
        for index, parent in read_traces(response.traces).items():
            offset = response.first_offset + index
            if batch.first_offset <= offset < batch.next_offset:
                span = spans.start(Operation.RECEIVE, self.spec.name or self.stream, parent)
                span.end()
                contexts[offset] = span.context or parent
        self._ahead[-1] = replace(batch, traces=contexts)

    @property
    def position(self) -> int:
        """The offset of the next record that the iteration returns."""
        return self._ahead[0].first_offset if self._ahead else self._position or 0

    @property
    def spec(self) -> specs.StreamSpec:
        """The stream's declaration. It is available once the log has been found."""
        return self._link.spec

    @property
    def incarnation(self) -> str:
        """Which log of the stream it is. Empty until the log has been found."""
        return self._link.incarnation

    @property
    def kept_since(self) -> int | None:
        """Since when the stream's log keeps records, as wall time in microseconds. None if that is unknown."""
        return self._link.created_at or None

    @property
    def made_log(self) -> bool:
        """Whether this subscription created the stream's log. Earlier records were then not kept."""
        return self._link.created

    # ACKs.

    async def ack(self, below_offset: int) -> None:
        """ACK every record below ``below_offset``, for cursors. Returns at once; :meth:`flush` makes it durable.

        ACKs that follow within 20 ms go in one message. So where a program dies, as much may be delivered again.

        Args:
            below_offset: The offset after the last processed record, such as :attr:`Batch.next_offset`.
        """
        await self._acks.ack(below_offset)

    async def _send_ack(self, below: int) -> bool:
        call = self._link.call
        return call is not None and await call.write(_ack(below))

    @property
    def acked(self) -> int:
        """The last ACK: records below this offset are ACKed. ``durable`` follows it."""
        return max(self._acks.newest, self._durable)

    @property
    def durable(self) -> int:
        """The last ACK that the log has on disk. Records below this offset are never delivered again."""
        return self._durable

    async def flush(self) -> None:
        """Wait until the last ACK is on disk. Records that arrive meanwhile are delivered by the next iterations."""
        await self._acks.flush()
        while self.cursor and self._durable < self._acks.newest:
            await self._receive()


def _ack(below: int) -> wire.SubscribeRequest:
    return wire.SubscribeRequest(ack=wire.SubscribeAck(below_offset=below))
