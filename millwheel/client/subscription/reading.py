"""Reading a stream's log: one call to its owner, and the batches that its responses become (section 4.3)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Self

import grpc

from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.model.traces import RecordTraces
from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.rpc.v1.subscription_pb2_grpc import SubscriptionServiceStub

__all__ = ["MAX_SILENCE_SECONDS", "Batch", "LogCall", "LogReader"]

MAX_SILENCE_SECONDS: Final = 3.0
"""Seconds without a response before a request to the master checks whether the log has moved.

A paused or unreachable owner does not end the call. Another worker has the log long before gRPC detects the failure."""


class LogCall:
    """One call to the owner of a log. It is not used any more after a failure."""

    def __init__(self, stream: str, address: str, moved: Callable[[str], Awaitable[bool]]) -> None:
        """``moved``: whether another worker than the one at an address owns the log now."""
        self.ended = False
        """Whether the call was cancelled."""
        self._stream = stream
        self._address = address
        self._moved = moved
        self._has_moved = False
        """Whether the call was cancelled because the log has moved."""
        self._waits_since: float | None = None
        """Since when the current reader waits for a response, by the loop's clock. None while there is no reader."""
        self._channel = open_channel(address)
        self._call: grpc.aio.StreamStreamCall[wire.SubscribeRequest, wire.SubscribeResponse] = SubscriptionServiceStub(
            self._channel
        ).Subscribe()  # type: ignore[call-arg]  # the stubs know no call that is written to
        self._writing = asyncio.Lock()
        """gRPC takes one message after the other, and the log takes the start first."""
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """End the call."""
        self._watching.cancel()
        self._call.cancel()
        await self._channel.close(None)

    async def read(self) -> wire.SubscribeResponse:
        """The next response.

        Raises:
            RequestError: The call has ended.
        """
        before = _current_task().cancelling()
        try:
            self._waits_since = asyncio.get_running_loop().time()
            response = await self._call.read()
            if isinstance(response, wire.SubscribeResponse):
                return response
            code = await self._call.code()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, f"the log of stream {self._stream!r}") from error
        except asyncio.CancelledError:
            # gRPC cancels the call together with its reader. It also shows the end of the call as a cancellation.
            self.ended = True
            if not self._has_moved or _current_task().cancelling() > before:
                raise
            raise RequestError(FailureCode.UNAVAILABLE, f"the log of stream {self._stream!r} has moved", "") from None
        finally:
            self._waits_since = None
        raise RequestError(FailureCode.UNAVAILABLE, f"the log of stream {self._stream!r} ended the call ({code})")

    async def write(self, request: wire.SubscribeRequest) -> bool:
        """Send a request, after those before it.

        Returns:
            Whether the call took it. False: the call is broken, and the next call's first requests say the same.
        """
        async with self._writing:
            if self.ended:
                return False
            before = _current_task().cancelling()
            try:
                await self._call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return False
            except asyncio.CancelledError:
                self.ended = True
                if not self._has_moved or _current_task().cancelling() > before:
                    raise
                return False
            return True

    async def begin(self, requests: Iterable[wire.SubscribeRequest]) -> None:
        """Send the first requests. A request that is written meanwhile goes after them."""
        async with self._writing:
            await self._begin(requests)

    async def _begin(self, requests: Iterable[wire.SubscribeRequest]) -> None:
        try:
            # A call that has ended cannot be written to. Its reader gets the reason.
            with suppress(asyncio.InvalidStateError):
                for request in requests:
                    await self._call.write(request)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, f"the log of stream {self._stream!r}") from error
        except asyncio.CancelledError:
            self.ended = True
            raise

    async def _watch(self) -> None:
        """End the call if its reader has waited long and the log has moved (7.1, figure 12).

        There is one such task for each call, instead of one timer for each response.
        """
        loop = asyncio.get_running_loop()
        while True:
            since = self._waits_since
            last_received = loop.time() if since is None else since
            await asyncio.sleep(last_received + MAX_SILENCE_SECONDS - loop.time())
            if since is None or self._waits_since != since:
                continue
            if await self._moved(self._address) and self._waits_since == since:
                self._has_moved = True
                self._call.cancel()
                return
            await asyncio.sleep(MAX_SILENCE_SECONDS)


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records of a stream. Iterate over it for (offset, timestamp, value).

    ``watermark``, in microseconds: every record with a smaller timestamp has a smaller offset than ``next_offset``,
    except late records (4.5). Without records, the watermark has advanced. ``traces``: sampled records by offset.
    """

    first_offset: int
    values: list[Any]
    timestamps: list[int]
    watermark: int
    next_offset: int
    traces: RecordTraces = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        return zip(range(self.first_offset, self.next_offset), self.timestamps, self.values, strict=True)


class LogCalls(Protocol):
    """The calls to the successive owners of one log. ``call`` is the newest, if there is one."""

    call: LogCall | None

    async def reopen(
        self, opening: Callable[[], list[wire.SubscribeRequest]], failure: RequestError | None
    ) -> wire.SubscribeResponse:
        """The first response of a new call."""


class LogReader(ABC):
    """The batches of one log, in order. ``Subscription`` adds its options, its ACKs and its end.

    It has many attributes: four are for programs and metrics (``watermark``, ``received``, ``missed``, ``end``).
    """

    def __init__(self, calls: LogCalls, decode: Callable[[bytes], Any] | None) -> None:
        self.watermark: int = MIN_TIMESTAMP
        """The largest watermark of a batch received so far, in microseconds."""
        self.received = 0
        """Records that the iteration has returned so far."""
        self.missed = 0
        """Records that were deleted before they were delivered.

        It happens to a tail slower than the stream's retention.
        """
        self.end = 0
        """The offset after the log's last committed record, as of the last response."""
        self._calls = calls
        self._decode = decode
        self._auto_ack = self._until_end = self._watermarks = False
        self._reading = asyncio.Lock()
        self._ahead: deque[Batch] = deque()
        self._position: int | None = None
        """The offset after the last record received. None before the first response."""
        self._delivered: int | None = None
        self._life = 0
        """The incarnation of the cursor that ``_position`` belongs to.

        The cursor may be re-created between two calls.
        """
        self._ended = False
        self._durable = 0

    @abstractmethod
    def _first_requests(self) -> list[wire.SubscribeRequest]:
        """The first requests of a new call."""

    @abstractmethod
    async def ack(self, below_offset: int) -> None:
        """ACK every record below ``below_offset``."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        if self._auto_ack and self._delivered is not None:
            await self.ack(self._delivered)
        while True:
            if self._ahead:
                batch = self._decoded(self._ahead[0])
                self._ahead.popleft()
                self._delivered = batch.next_offset
                self.received += len(batch.values)
                return batch
            if self._ended and self._until_end:
                raise StopAsyncIteration
            await self._receive()

    def _decoded(self, batch: Batch) -> Batch:
        """Decode a batch. A batch that cannot be decoded stays queued, so no record is skipped."""
        return batch if self._decode is None else replace(batch, values=list(map(self._decode, batch.values)))

    async def _receive(self) -> None:
        """Receive one response, and append its records to ``_ahead``."""
        async with self._reading:
            self._take(await self._read())

    async def _read(self) -> wire.SubscribeResponse:
        """The next response of the present call, or the first one of a new call."""
        call, failure = self._calls.call, None
        if call is not None and not call.ended:
            try:
                return await call.read()
            except RequestError as error:
                failure = error
        return await self._calls.reopen(self._first_requests, failure)

    def _take(self, response: wire.SubscribeResponse) -> None:
        self._durable = max(self._durable, response.acked_offset)
        self._life = response.cursor_life
        self.end = max(self.end, response.end_offset, response.next_offset)
        first, known = response.first_offset, self._position
        values, timestamps = list(response.values), list(response.timestamps_us)
        if known is not None and first < known:
            values, timestamps, first = values[known - first :], timestamps[known - first :], known
        elif known is not None:
            self.missed += first - known
        self._position = max(response.next_offset, known or 0)
        moved = response.watermark_us > self.watermark
        self.watermark = max(self.watermark, response.watermark_us)
        self._ended = response.watermark_us == MAX_TIMESTAMP
        if values or (moved and self._watermarks):
            self._ahead.append(Batch(first, values, timestamps, self.watermark, self._position))
