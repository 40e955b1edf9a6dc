"""SubscriptionService: subscribers of the logs that this worker owns, over gRPC.

The service makes no decisions. It turns requests into events for a log's core, and the core's effects into responses.
 It requests a response (``Fetch``) only when a previous one was sent, so gRPC's flow control reaches the
core.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Protocol, assert_never

from millwheel.rpc.errors import abort, answering
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.rpc.v1.subscription_pb2_grpc import SubscriptionServiceServicer
from millwheel.worker.log.messages import (
    AckOffset,
    CursorInfo,
    CursorsAnswer,
    DeleteCursor,
    EndSubscription,
    Fetch,
    ListCursors,
    Publish,
    Start,
    Subscribe,
    SubscriberEffect,
    SubscriberEvent,
    Unsubscribe,
)

__all__ = ["LogHostLike", "LogService"]

_MAX_RESPONSES_AHEAD: Final = 4
"""Responses that the core may prepare for one call: at most as many MiB."""
_ANSWER_SECONDS: Final = 10.0
_MAX_NAME: Final = 256

_STARTS: Final = {
    wire.SUBSCRIBE_FROM_OLDEST: Start.OLDEST,
    wire.SUBSCRIBE_FROM_NOW: Start.NOW,
}


class LogHostLike(Protocol):
    """What the service needs of the driver of a log's core."""

    def post(self, event: SubscriberEvent) -> None:
        """Let the core process ``event`` soon."""


class _SubscribeCall:
    """One ``Subscribe`` call: the core's responses in order. Its fetches bound the queue."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.queue: asyncio.Queue[Publish | RequestError] = asyncio.Queue()


class _Asker:
    """One unary call that waits for the core's answer."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.answer: asyncio.Future[CursorsAnswer] = asyncio.get_running_loop().create_future()

    def settle(self, answer: CursorsAnswer) -> None:
        """The core has answered. No effect if the caller has gone."""
        if not self.answer.done():
            self.answer.set_result(answer)


class LogService(SubscriptionServiceServicer):
    """Serves subscribers of the streams whose host ``find`` returns.

    ``find`` takes the stream and the log's incarnation. An empty incarnation means any log of the stream. Give the
    hosts ``perform`` for the effects on subscribers. Call ``dropped`` whenever a host is closed.
    """

    def __init__(self, find: Callable[[str, str], LogHostLike | None]) -> None:
        self._find = find
        self._calls: dict[_SubscribeCall, None] = {}
        self._askers: dict[_Asker, None] = {}

    def perform(self, effect: SubscriberEffect) -> None:
        """Perform an effect of a log's core on a subscriber or an operator."""
        match effect:
            case Publish():
                effect.subscriber.queue.put_nowait(effect)
            case EndSubscription():
                effect.subscriber.queue.put_nowait(effect.error)
            case CursorsAnswer():
                effect.asker.settle(effect)
            case _:
                assert_never(effect)

    def dropped(self, stream: str) -> None:
        """The log of ``stream`` is not served here any more: its subscribers must find it elsewhere."""
        error = self._not_here(stream)
        for call in self._calls:
            if call.stream == stream:
                call.queue.put_nowait(error)
        for asker in self._askers:
            if asker.stream == stream:
                asker.settle(CursorsAnswer(asker, [], error))

    # Calls.

    async def Subscribe(
        self, request_iterator: AsyncIterator[wire.SubscribeRequest], context: Any
    ) -> AsyncIterator[wire.SubscribeResponse]:
        """Sends records and receives ACKs, until either side ends the call."""
        call: _SubscribeCall | None = None
        host: LogHostLike | None = None
        reader: asyncio.Task[None] | None = None
        try:
            start = _start_of(await anext(aiter(request_iterator), None))
            host = self._host(start.stream, start.incarnation)
            call = _SubscribeCall(start.stream)
            self._calls[call] = None
            resume = start.resume_offset if start.HasField("resume_offset") else None
            begin, window, life = _begin_of(start), start.window, start.cursor_life
            host.post(Subscribe(call, start.cursor, begin, window, resume, start.subscriber_id, life))
            host.post(Fetch(call, _MAX_RESPONSES_AHEAD))
            reader = asyncio.get_running_loop().create_task(_read_acks(request_iterator, host, call))
            while True:
                item = await call.queue.get()
                if isinstance(item, RequestError):
                    raise item
                yield _response(item)
                host.post(Fetch(call))
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

        async def work() -> wire.ListCursorsResponse:
            found = await self._ask(request.stream, request.incarnation, ListCursors)
            return wire.ListCursorsResponse(cursors=[_status(request.stream, one) for one in found])

        return await answering(context, work)

    async def DeleteCursor(self, request: wire.DeleteCursorRequest, context: Any) -> wire.DeleteCursorResponse:
        """Delete a cursor. The answer comes when the deletion is durable."""

        async def work() -> wire.DeleteCursorResponse:
            await self._ask(request.stream, request.incarnation, lambda asker: DeleteCursor(asker, request.cursor))
            return wire.DeleteCursorResponse()

        return await answering(context, work)

    async def _ask(self, stream: str, incarnation: str, event: Callable[[_Asker], SubscriberEvent]) -> list[CursorInfo]:
        host = self._host(stream, incarnation)
        asker = _Asker(stream)
        self._askers[asker] = None
        try:
            host.post(event(asker))
            answer = await _within(_ANSWER_SECONDS, asker.answer, stream)
        finally:
            self._askers.pop(asker, None)
        if answer.error is not None:
            raise answer.error
        return answer.cursors

    def _host(self, stream: str, incarnation: str) -> LogHostLike:
        host = self._find(stream, incarnation)
        if host is None:
            raise self._not_here(stream)
        return host

    @staticmethod
    def _not_here(stream: str) -> RequestError:
        return RequestError(
            FailureCode.UNAVAILABLE,
            f"this worker does not own the log of stream {stream!r}",
            "ask the master for its owner (EnsureStreamLog), and try again there",
            reason="NOT_OWNER",
        )


async def _within(seconds: float, work: Awaitable[CursorsAnswer], stream: str) -> CursorsAnswer:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise RequestError(
            FailureCode.UNAVAILABLE, f"the log of stream {stream!r} did not answer in time", "try again"
        ) from None


def _start_of(request: wire.SubscribeRequest | None) -> wire.SubscribeStart:
    """Check the first request of a call.

    Raises:
        RequestError: It is not a start, or it has an invalid value.
    """
    if request is None or request.WhichOneof("request") != "start":
        raise _invalid("a Subscribe call begins with its start", "send start first, ACKs later")
    start = request.start
    if not start.stream:
        raise _invalid("the start names no stream", "set start.stream")
    if max(len(start.cursor.encode()), len(start.subscriber_id.encode())) > _MAX_NAME:
        raise _invalid(f"the cursor's or subscriber's name is longer than {_MAX_NAME} bytes", "choose a shorter one")
    if start.window < 0:
        raise _invalid(f"the window is {start.window}", "set it to at least 1, or to 0 for the default")
    if start.begin and start.begin not in _STARTS:
        raise _invalid(f"start.begin has the unknown value {start.begin}", "use OLDEST or NOW")
    return start


def _begin_of(start: wire.SubscribeStart) -> Start:
    return _STARTS.get(start.begin) or (Start.OLDEST if start.cursor else Start.NOW)


def _invalid(message: str, remedy: str) -> RequestError:
    return RequestError(FailureCode.INVALID_ARGUMENT, message, remedy)


async def _read_acks(requests: AsyncIterator[wire.SubscribeRequest], host: LogHostLike, call: _SubscribeCall) -> None:
    try:
        async for request in requests:
            if request.WhichOneof("request") != "ack":
                raise _invalid("a second start on one call", "open a call for each subscription")
            host.post(AckOffset(call, request.ack.below_offset))
    except RequestError as error:
        call.queue.put_nowait(error)


def _response(publish: Publish) -> wire.SubscribeResponse:
    return wire.SubscribeResponse(
        first_offset=publish.first,
        values=publish.values,
        timestamps_us=publish.timestamps,
        watermark_us=publish.watermark,
        next_offset=publish.next,
        acked_offset=publish.acked,
        cursor_life=publish.life,
    )


def _status(stream: str, info: CursorInfo) -> wire.CursorStatus:
    return wire.CursorStatus(stream=stream, cursor=info.name, acked_offset=info.acked, end_offset=info.end)
