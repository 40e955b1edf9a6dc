"""SubscriptionService: subscribers of the logs that this worker owns, over gRPC.

The service makes no decisions. It turns requests into events for a log's core, and the core's effects into responses.
It requests responses (``Fetch``) only when previous ones were sent, so gRPC's flow control reaches the core.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, assert_never

from millwheel.rpc.errors import abort, answering
from millwheel.rpc.failures import RequestError
from millwheel.rpc.packed_values import PackedValues
from millwheel.rpc.traces import wire_traces
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.rpc.v1.subscription_pb2_grpc import SubscriptionServiceServicer
from millwheel.worker.log.messages import (
    AckOffset,
    EndSubscription,
    Fetch,
    LogAnswer,
    Publish,
    Subscribe,
    SubscriberEffect,
    Unsubscribe,
)
from millwheel.worker.process.subscription_requests import (
    FindHost,
    LogHostLike,
    LogRequests,
    begin_of,
    invalid,
    not_here,
    serving_host,
    start_of,
)

__all__ = ["LogService"]

_MAX_RESPONSES_AHEAD: Final = 4
"""Responses that the core may prepare for one call: at most as many MiB."""

_RESPONSES_PER_FETCH: Final = _MAX_RESPONSES_AHEAD // 2
"""A fetch is an event of the log's core, with all that the core does for one. The other half is prepared meanwhile."""


_VALUES: Final = wire.SubscribeResponse.VALUES_FIELD_NUMBER


class _SubscribeCall:
    """One ``Subscribe`` call: the core's responses in order. Its fetches bound the queue."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.queue: asyncio.Queue[Publish | RequestError] = asyncio.Queue()


class LogService(SubscriptionServiceServicer):
    """Serves subscribers of the streams whose host ``find`` returns.

    Give the hosts ``perform`` for the effects on subscribers. Call ``dropped`` whenever a host is closed.
    """

    def __init__(self, find: FindHost) -> None:
        self._find = find
        self._calls: dict[_SubscribeCall, None] = {}
        self.requests = LogRequests(find)

    def perform(self, effect: SubscriberEffect) -> None:
        """Perform an effect of a log's core on a subscriber or an operator."""
        match effect:
            case Publish():
                effect.subscriber.queue.put_nowait(effect)
            case EndSubscription():
                effect.subscriber.queue.put_nowait(effect.error)
            case LogAnswer():
                effect.asker.settle(effect)
            case _:
                assert_never(effect)

    def dropped(self, stream: str) -> None:
        """The log of ``stream`` is not served here any more: its subscribers must find it elsewhere."""
        for call in self._calls:
            if call.stream == stream:
                call.queue.put_nowait(not_here(stream))
        self.requests.dropped(stream)

    # Calls.

    async def Subscribe(
        self, request_iterator: AsyncIterator[wire.SubscribeRequest], context: Any
    ) -> AsyncIterator[wire.SubscribeResponse]:
        """Sends records and receives ACKs, until either side ends the call."""
        call: _SubscribeCall | None = None
        host: LogHostLike | None = None
        reader: asyncio.Task[None] | None = None
        try:
            start = start_of(await anext(aiter(request_iterator), None))
            host = serving_host(self._find, start.stream, start.incarnation)
            call = _SubscribeCall(start.stream)
            self._calls[call] = None
            resume = start.resume_offset if start.HasField("resume_offset") else None
            begin, window, life = begin_of(start), start.window, start.cursor_life
            host.post(Subscribe(call, start.cursor, begin, window, resume, start.subscriber_id, life))
            host.post(Fetch(call, _MAX_RESPONSES_AHEAD))
            reader = asyncio.get_running_loop().create_task(_read_acks(request_iterator, host, call))
            taken = 0
            while True:
                item = await call.queue.get()
                if isinstance(item, RequestError):
                    raise item
                yield _response(item)
                taken += 1
                if taken == _RESPONSES_PER_FETCH:
                    host.post(Fetch(call, taken))
                    taken = 0
        except RequestError as error:
            await abort(context, error)
        finally:
            if reader is not None:
                reader.cancel()
            if call is not None and host is not None:
                self._calls.pop(call, None)
                host.post(Unsubscribe(call))

    async def ListCursors(self, request: wire.ListCursorsRequest, context: Any) -> wire.ListCursorsResponse:
        """The durable cursors of a stream."""
        return await answering(context, lambda: self.requests.list_cursors(request))

    async def DeleteCursor(self, request: wire.DeleteCursorRequest, context: Any) -> wire.DeleteCursorResponse:
        """Delete a cursor. The answer comes when the deletion is durable."""
        return await answering(context, lambda: self.requests.delete_cursor(request))


async def _read_acks(requests: AsyncIterator[wire.SubscribeRequest], host: LogHostLike, call: _SubscribeCall) -> None:
    try:
        async for request in requests:
            if request.WhichOneof("request") != "ack":
                raise invalid("a second start on one call", "open a call for each subscription")
            host.post(AckOffset(call, request.ack.below_offset))
    except RequestError as error:
        call.queue.put_nowait(error)


def _response(publish: Publish) -> wire.SubscribeResponse:
    packed = publish.values.as_field(_VALUES) if isinstance(publish.values, PackedValues) else None
    response = wire.SubscribeResponse(
        first_offset=publish.first,
        values=() if packed is not None else publish.values,
        timestamps_us=publish.timestamps,
        watermark_us=publish.watermark,
        next_offset=publish.next,
        acked_offset=publish.acked,
        cursor_life=publish.life,
        end_offset=publish.end,
        traces=wire_traces(publish.traces) if publish.traces else (),
    )
    if packed is not None:
        response.MergeFromString(packed)
    return response
