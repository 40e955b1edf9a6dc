"""Reading a stream from outside: subscriptions with a durable cursor, or as a tail (section 4.3; design §9).

::

    async with Subscription("dips", cursor="alerts") as subscription:
        async for batch in subscription:
            for offset, timestamp, value in batch:
                ...
            await subscription.ack(batch.next_offset)

What is ACKed is not delivered again, whoever asks under that cursor. When the log moves or its worker restarts, the
subscription finds it again and goes on where it was: the program sees every offset once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from types import TracebackType
from typing import Any, TypeVar
from uuid import uuid4

from millwheel.client.control import DEFAULT_ADDRESS, ControlClient
from millwheel.client.log_link import LogLink
from millwheel.core.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.codecs import codec_for

__all__ = ["Batch", "BlockingSubscription", "From", "Subscription"]

Result = TypeVar("Result")


class From(Enum):
    """Where a cursor that does not exist yet begins, or a tail."""

    OLDEST = wire.SUBSCRIBE_FROM_OLDEST
    """At the oldest record kept."""
    NOW = wire.SUBSCRIBE_FROM_NOW


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records of a stream; iterate it for (offset, timestamp, value).

    ``watermark``: every record with a smaller timestamp (microseconds) is at a smaller offset than ``next_offset``,
    late ones aside (4.5). A batch without records says that the watermark moved.
    """

    first_offset: int
    values: list[Any]
    timestamps: list[int]
    watermark: int
    next_offset: int

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        return zip(range(self.first_offset, self.next_offset), self.timestamps, self.values, strict=True)


class Subscription:
    """One subscriber of one stream; ``async with`` it, and iterate it for batches.

    Args:
        stream: its name.
        cursor: a durable cursor's name; empty for a tail, which keeps nothing.
        start: where a cursor that does not exist yet begins, or a tail; by default at the oldest record, or now.
        record_type: what values are decoded as, by the SDK's codecs; None leaves them bytes.
        decode: the same by a function of one's own.
        address: the master's.
        window: records sent beyond the last ACK, at most; 0 takes the log's default. For cursors.
        auto_ack: ACK a batch when the next is asked for.
        until_end: end the iteration when the stream has ended and everything was delivered.
        watermarks: also deliver batches without records, when only the watermark moved.
        patience: seconds for which a log that cannot be reached is looked for.

    Iteration raises RequestError for what does not pass by itself: an unknown stream, a cursor that another
    subscriber has taken over (reason ``CURSOR_TAKEN_OVER``) or that was deleted.
    """

    def __init__(
        self,
        stream: str,
        *,
        cursor: str = "",
        start: From | None = None,
        record_type: Any = None,
        decode: Callable[[bytes], Any] | None = None,
        address: str = DEFAULT_ADDRESS,
        window: int = 0,
        auto_ack: bool = False,
        until_end: bool = False,
        watermarks: bool = False,
        patience: float = 60.0,
    ) -> None:
        if record_type is not None:
            decode = codec_for(record_type, f"stream {stream!r}").decode
        self.stream = stream
        self.cursor = cursor
        self.watermark: int = MIN_TIMESTAMP
        """The largest watermark that came with a batch."""
        self.missed = 0
        """Records that were gone before they could be delivered: of a tail slower than the stream's retention."""
        self._start = start or (From.OLDEST if cursor else From.NOW)
        self._decode = decode
        self._window = window
        self._id = uuid4().hex
        self._auto_ack = auto_ack
        self._until_end = until_end
        self._watermarks = watermarks
        self._link = LogLink(ControlClient(address), stream, patience)
        self._reading = asyncio.Lock()
        self._ahead: deque[Batch] = deque()
        self._position: int | None = None
        """The offset after the last record received; None before the first response."""
        self._delivered: int | None = None
        self._life = 0
        """The life of the cursor that the position is of. Between two calls another may have come."""
        self._acked = 0
        self._durable = 0
        self._ended = False

    async def __aenter__(self) -> Subscription:
        """Waits until the log has answered: from now on the cursor exists, or the tail has its beginning."""
        try:
            await self._receive()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the subscription. ACKs that were not flushed may be lost: their records are then delivered again."""
        await self._link.close()

    # Reading.

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Batch:
        if self._auto_ack and self._delivered is not None:
            await self.ack(self._delivered)
        while True:
            if self._ahead:
                batch = self._decoded(self._ahead[0])
                self._ahead.popleft()
                self._delivered = batch.next_offset
                return batch
            if self._ended and self._until_end:
                raise StopAsyncIteration
            await self._receive()

    def _decoded(self, batch: Batch) -> Batch:
        """The batch as it is delivered. One that cannot be decoded stays: nothing is passed over."""
        decode = self._decode
        return batch if decode is None else replace(batch, values=[decode(value) for value in batch.values])

    async def _receive(self) -> None:
        """Take one response in; what is to be delivered goes ``_ahead``."""
        async with self._reading:
            response = await self._link.read(self._request)
            self._take(response)

    def _request(self) -> list[wire.SubscribeRequest]:
        """What a new call begins with: where to go on, and the last ACK, which the call before may have lost."""
        start = wire.SubscribeStart(
            stream=self.stream, cursor=self.cursor, begin=self._start.value, window=self._window
        )
        start.subscriber_id = self._id
        if self._position is not None:
            start.resume_offset = self._position
            start.cursor_life = self._life
        requests = [wire.SubscribeRequest(start=start)]
        if self._acked > self._durable:
            requests.append(_ack(self._acked))
        return requests

    def _take(self, response: wire.SubscribeResponse) -> None:
        self._durable = max(self._durable, response.acked_offset)
        self._life = response.cursor_life
        first, known = response.first_offset, self._position
        values, timestamps = list(response.values), list(response.timestamps_us)
        if known is not None and first < known:
            values, timestamps = values[known - first :], timestamps[known - first :]
            first = known
        elif known is not None:
            self.missed += first - known
        self._position = max(response.next_offset, known or 0)
        moved = response.watermark_us > self.watermark
        self.watermark = max(self.watermark, response.watermark_us)
        self._ended = response.watermark_us == MAX_TIMESTAMP
        if values or (moved and self._watermarks):
            self._ahead.append(Batch(first, values, timestamps, self.watermark, self._position))

    @property
    def spec(self) -> specs.StreamSpec:
        """The stream's declaration, once the log has been found."""
        return self._link.spec

    # Acknowledging.

    async def ack(self, below_offset: int) -> None:
        """Be done with every record below ``below_offset``. Returns at once: see ``flush``. For cursors."""
        if below_offset > self._acked:
            self._acked = below_offset
            await self._link.write(_ack(below_offset))

    @property
    def durable(self) -> int:
        """The ACK that the log has on disk: nothing below it is ever delivered again."""
        return self._durable

    async def flush(self) -> None:
        """Wait until the last ACK is on disk. What arrives meanwhile is delivered by the next iterations."""
        while self.cursor and self._durable < self._acked:
            await self._receive()


def _ack(below: int) -> wire.SubscribeRequest:
    return wire.SubscribeRequest(ack=wire.SubscribeAck(below_offset=below))


class BlockingSubscription:
    """A :class:`Subscription` for programs without an event loop: ``with`` it, and iterate it.

    Takes the same arguments. One thread of its own does the talking.
    """

    def __init__(self, stream: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"millwheel-subscription-{stream}", daemon=True
        )
        self._thread.start()
        self._open = True
        try:
            self._inner = self._run(_entered(stream, options))
        except BaseException:
            self._stop()
            raise

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def __enter__(self) -> BlockingSubscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> BlockingSubscription:
        return self

    def __next__(self) -> Batch:
        batch = self._run(_next_or_none(self._inner))
        if batch is None:
            raise StopIteration
        return batch

    @property
    def watermark(self) -> int:
        """The largest watermark that came with a batch."""
        return self._inner.watermark

    def ack(self, below_offset: int) -> None:
        """Be done with every record below ``below_offset``; see :meth:`Subscription.ack`."""
        self._run(self._inner.ack(below_offset))

    def flush(self) -> None:
        """Wait until the last ACK is on disk."""
        self._run(self._inner.flush())

    def close(self) -> None:
        """End the subscription and its thread."""
        if self._open:
            self._open = False
            try:
                self._run(self._inner.close())
            finally:
                self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _entered(stream: str, options: dict[str, Any]) -> Subscription:
    return await Subscription(stream, **options).__aenter__()


async def _next_or_none(subscription: Subscription) -> Batch | None:
    """The next batch; a StopAsyncIteration cannot leave a task."""
    return await anext(subscription, None)
