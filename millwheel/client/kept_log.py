"""Reads what the log of a stream keeps, by its offsets and without a cursor (section 4.3).

A log has consecutive offsets, and a record of it never changes. So a range of offsets always has the same records, for
as long as the log keeps them. Reading creates no log, holds no record back, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from millwheel.client.control import DEFAULT_ADDRESS
from millwheel.client.owner_client import OwnerClient, with_successor
from millwheel.client.subscription.log_link import log_address
from millwheel.client.subscription.reading import Batch
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.errors import calling
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.rpc.v1.subscription_pb2_grpc import SubscriptionServiceStub

__all__ = ["KeptLog"]

log = logging.getLogger("millwheel.client")


class KeptLog(OwnerClient):
    """The log of a stream. Use it with ``async with``. For example::

        async with KeptLog("zeitgeist/windows") as kept:
            async for batch in kept.read(await kept.start(), await kept.end()):
                for offset, timestamp, value in batch:
                    ...

    Args:
        stream: The full name of the stream, or its short name if no other topology has a stream of that name.
        address: A master's address, as host or host:port; several with commas between them.
        patience: Seconds to look for a log that cannot be reached, for example while it moves to another worker.
        incarnation: The log that is meant. Empty: the one that is there first. Another log of the stream is an error:
            its offsets begin at 0 again.

    Raises:
        RequestError: By each call. The stream is unknown, or has no log (reason ``NO_LOG``), or another log than the
            one that was meant (``STREAM_LOG_REPLACED``); or its owner was not found in time.
    """

    def __init__(
        self, stream: str, *, address: str = DEFAULT_ADDRESS, patience: float = 60.0, incarnation: str = ""
    ) -> None:
        super().__init__(address, patience)
        self.stream = stream
        """The stream. Once the log is found, it is the full name."""
        self.incarnation = IncarnationId(incarnation)
        self.spec = specs.StreamSpec()
        """The stream's declaration, once the log is found."""
        self._owner = ""

    async def start(self) -> int:
        """The oldest offset that the log keeps. The offset of the next record if it keeps none."""
        return (await self._first(wire.SUBSCRIBE_FROM_OLDEST)).first_offset

    async def end(self) -> int:
        """The offset after the last committed record."""
        return (await self._first(wire.SUBSCRIBE_FROM_NOW)).end_offset

    async def first_since(self, timestamp: int) -> int:
        """The offset of the first kept record with this timestamp, in microseconds, or a larger one.

        It reads the log from its oldest record. Without such a record it is the log's end.
        """
        start, end = await self.start(), await self.end()
        async with aclosing(self.read(start, end, lossy=True)) as batches:
            async for batch in batches:
                for offset, at, _ in batch:
                    if at >= timestamp:
                        return offset
        return end

    async def read(self, first: int, end: int, *, lossy: bool = False) -> AsyncGenerator[Batch, None]:
        """The records from one offset up to another, in batches of up to 1,000 records and about 1 MiB.

        Args:
            first: The offset of the first record.
            end: The offset after the last record. It is at most the log's end.
            lossy: Whether records that the log does not keep any more are left out. A warning says how many.

        Raises:
            RequestError: See the class. Or the log does not keep all these records any more, and ``lossy`` is not set
                (``RECORDS_NOT_KEPT``).
        """
        position = first
        async with aclosing(_LogResponses(self, wire.SUBSCRIBE_FROM_OLDEST, first)) as reading:
            while position < end:
                response = await reading.next()
                if response.first_offset > position:
                    self._missed(position, min(response.first_offset, end), lossy)
                    position = response.first_offset
                values = list(response.values[: max(end - position, 0)])
                position += len(values)
                if values:
                    timestamps = list(response.timestamps_us[: len(values)])
                    yield Batch(response.first_offset, values, timestamps, response.watermark_us, position)
                reading.position = position

    def _missed(self, first: int, end: int, lossy: bool) -> None:
        what = (
            f"the log of stream {self.stream!r} does not keep its records from offset {first:,} to {end - 1:,} any more"
        )
        if not lossy:
            raise RequestError(
                FailureCode.OUT_OF_RANGE,
                what,
                "read sooner, or give the stream a longer retention; to go on without them, begin at a later offset",
                reason="RECORDS_NOT_KEPT",
            )
        log.warning("%s: they are left out", what)

    async def _first(self, begin: wire.SubscribeFrom.ValueType) -> wire.SubscribeResponse:
        async with aclosing(_LogResponses(self, begin, None)) as reading:
            return await reading.next()

    async def _find(self) -> None:
        """Find the log and its owner, as the master knows them now."""
        routing = await self._control.routing(self.stream)
        # A short name may stand for several streams later. From now on it is this one.
        self.stream, self.spec = routing.stream.name, routing.stream
        if len(routing.schemas) == 1:
            self.spec.schema.CopyFrom(routing.schemas[0])
        found = next((consumer for consumer in routing.consumers if consumer.log), None)
        if found is None:
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"stream {self.stream!r} has no log: its records are not kept",
                f"`millwheel stream tail {self.stream}` makes one, and keeps them from then on",
                reason="NO_LOG",
            )
        if self.incarnation not in ("", found.incarnation):
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"the log of stream {self.stream!r} was replaced by another, whose offsets start again",
                "begin again without the former offsets",
                reason="STREAM_LOG_REPLACED",
            )
        self.incarnation = IncarnationId(found.incarnation)
        owner = log_address(self.stream, found.intervals.intervals[0].owner.address)
        if owner != self._owner:
            await self._close_channels()
            self._owner = owner

    async def open(self, start: wire.SubscribeStart) -> _OwnerCall:
        """Begin a call to the log's owner."""
        await self._find()
        start.stream, start.incarnation = self.stream, self.incarnation
        stub = SubscriptionServiceStub(self._channel_to(self._owner))
        return _OwnerCall(self._owner, stub.Subscribe(_only(wire.SubscribeRequest(start=start))))


class _OwnerCall:
    """One call to an owner."""

    def __init__(self, owner: str, call: Any) -> None:
        self._owner = owner
        self._call = call

    async def next(self) -> wire.SubscribeResponse:
        """The next response. It comes at once: only records that the log has are asked for."""
        try:
            async with calling(self._owner), asyncio.timeout(DEFAULT_DEADLINE_SECONDS):
                response = await self._call.read()
        except TimeoutError:
            raise RequestError(
                FailureCode.DEADLINE_EXCEEDED,
                f"the worker at {self._owner} has not sent its records in {DEFAULT_DEADLINE_SECONDS:g} s",
                "see whether it is overloaded, and try again",
            ) from None
        if not isinstance(response, wire.SubscribeResponse):
            raise RequestError(FailureCode.UNAVAILABLE, f"the worker at {self._owner} has ended the call")
        return response

    def cancel(self) -> None:
        self._call.cancel()


class _LogResponses:
    """The responses of one log in order, from successive calls."""

    def __init__(self, kept: KeptLog, begin: wire.SubscribeFrom.ValueType, position: int | None) -> None:
        self.position = position
        """Where the next call begins."""
        self._kept = kept
        self._begin = begin
        self._call: _OwnerCall | None = None

    async def next(self) -> wire.SubscribeResponse:
        """The next response. After a failure the log is looked for again."""
        return await self._kept.retried(self._attempt)

    async def _attempt(self) -> wire.SubscribeResponse:
        try:
            if self._call is None:
                start = wire.SubscribeStart(begin=self._begin, resume_offset=self.position)
                self._call = await self._kept.open(start)
            return await self._call.next()
        except RequestError as error:
            await self.aclose()
            if error.reason == "OFFSET_BEYOND_END":
                # The record is committed, so this owner has a successor and does not know it.
                raise with_successor(error) from error
            raise
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """End the call."""
        if self._call is not None:
            self._call.cancel()
            self._call = None


async def _only(request: wire.SubscribeRequest) -> AsyncIterator[wire.SubscribeRequest]:
    """Yield the request, and then nothing for as long as the call lasts."""
    yield request
    await asyncio.Event().wait()
