"""StreamService: records of streams' logs. The logs' owners have them, and the master asks. It never creates a log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import grpc
import msgspec

from millwheel.client.shown_values import show_value
from millwheel.master.replica import MasterReplica
from millwheel.master.stream_resolution import refuse_unknown_stream, resolve_stream
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.errors import answering, calling
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import stream_pb2 as wire
from millwheel.rpc.v1 import stream_pb2_grpc
from millwheel.rpc.v1 import subscription_pb2 as subscription
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.rpc.v1.subscription_pb2_grpc import SubscriptionServiceStub

__all__ = ["ReadableLog", "StreamServicer", "log_of"]

_OWNER_SECONDS: Final = 4.0
"""How long an owner may take to send the records."""
_DEFAULT_RECORDS: Final = 50
_MAX_RECORDS: Final = 500
_MAX_CHARACTERS: Final = 2_000
"""A longer text is cut."""

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class ReadableLog:
    """A log to read: the stream, its log's incarnation, its owner's address, and the format of the values."""

    stream: str
    incarnation: IncarnationId
    address: str
    form: specs.ValueFormat.ValueType


class StreamServicer(stream_pb2_grpc.StreamServiceServicer):
    """Reads a log by a subscription without a cursor, for which the log keeps nothing."""

    def __init__(self, replica: MasterReplica) -> None:
        self._replica = replica

    async def ReadStream(self, request: wire.ReadStreamRequest, context: Context) -> wire.ReadStreamResponse:
        """Return the last records of a stream, or those from an offset on."""
        return await answering(context, lambda: self._read(request))

    async def _read(self, request: wire.ReadStreamRequest) -> wire.ReadStreamResponse:
        limit = min(request.limit if request.limit > 0 else _DEFAULT_RECORDS, _MAX_RECORDS)
        log = log_of((await self._replica.term()).catalog, request.stream)
        try:
            async with asyncio.timeout(_OWNER_SECONDS), calling(log.address):
                begin = request.from_offset if request.HasField("from_offset") else None
                if begin is None:
                    begin = max(await self._end(log) - limit, 0)
                return await self._from(log, begin, limit)
        except TimeoutError:
            raise RequestError(
                FailureCode.DEADLINE_EXCEEDED,
                f"the owner of the log of stream {log.stream!r} at {log.address} has not sent its records in time",
                "see whether it is overloaded, and try again",
            ) from None

    async def _end(self, log: ReadableLog) -> int:
        async with aclosing(self._responses(log, subscription.SUBSCRIBE_FROM_NOW, None)) as responses:
            async for response in responses:
                return response.end_offset
        return 0

    async def _from(self, log: ReadableLog, begin: int, limit: int) -> wire.ReadStreamResponse:
        found = wire.ReadStreamResponse(next_offset=begin)
        async with aclosing(self._responses(log, subscription.SUBSCRIBE_FROM_OLDEST, begin)) as responses:
            async for response in responses:
                left = limit - len(found.records)
                pairs = zip(response.values[:left], response.timestamps_us, strict=False)
                for number, (value, timestamp) in enumerate(pairs):
                    found.records.append(_shown(response.first_offset + number, timestamp, value, log.form))
                found.next_offset = response.first_offset + min(len(response.values), left)
                found.end_offset, found.watermark_us = response.end_offset, response.watermark_us
                if len(found.records) >= limit or found.next_offset >= response.end_offset:
                    break
        return found

    async def _responses(
        self, log: ReadableLog, begin: subscription.SubscribeFrom.ValueType, resume: int | None
    ) -> AsyncGenerator[subscription.SubscribeResponse, None]:
        start = subscription.SubscribeStart(
            stream=log.stream, incarnation=log.incarnation, begin=begin, resume_offset=resume
        )
        request = subscription.SubscribeRequest(start=start)
        stub = SubscriptionServiceStub(self._replica.observer.channel(log.address))
        call = stub.Subscribe(_only(request), timeout=_OWNER_SECONDS)
        try:
            async for response in call:
                yield response
        finally:
            call.cancel()


async def _only(request: subscription.SubscribeRequest) -> AsyncIterator[subscription.SubscribeRequest]:
    """Yield the request, and then nothing for as long as the call lasts."""
    yield request
    await asyncio.Event().wait()


def log_of(known: Catalog, name: str) -> ReadableLog:
    """Return where a stream's log is; RequestError if there is none, or if no worker owns it."""
    stream = resolve_stream(name, known)
    spec = known.stream(stream)
    if spec is None:
        refuse_unknown_stream(stream, known)
    log = known.logs.get(stream)
    if log is None:
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"stream {stream!r} has no log: its records are not kept",
            f"`millwheel stream tail {stream}` makes one, and keeps them from then on",
            reason="NO_LOG",
        )
    interval: catalog.IntervalRecord | None = next(iter(known.maps.get(log.incarnation, ())), None)
    if interval is None or not interval.owner.address:
        raise RequestError(
            FailureCode.UNAVAILABLE,
            f"no worker owns the log of stream {stream!r} now",
            "wait, or start a worker",
            reason="NO_OWNER",
        )
    return ReadableLog(stream, log.incarnation, interval.owner.address, spec.format)


def _shown(offset: int, timestamp: int, value: bytes, form: specs.ValueFormat.ValueType) -> wire.ShownRecord:
    shown = show_value(value, form)
    text = shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()
    cut = len(text) > _MAX_CHARACTERS
    return wire.ShownRecord(offset=offset, timestamp_us=timestamp, text=text[:_MAX_CHARACTERS], cut=cut)
