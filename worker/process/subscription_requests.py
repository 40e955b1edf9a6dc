"""Requests about this worker's logs: the checks of a new subscription, and operators' requests about cursors (4.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.worker.log.messages import (
    CursorInfo,
    CursorsAnswer,
    DeleteCursor,
    ListCursors,
    LogAnswer,
    Start,
    SubscriberEvent,
)

__all__ = [
    "FindHost",
    "LogHostLike",
    "LogRequest",
    "LogRequests",
    "begin_of",
    "invalid",
    "not_here",
    "serving_host",
    "start_of",
]

_ANSWER_SECONDS: Final = 10.0
_MAX_NAME: Final = 256

_STARTS: Final = {
    wire.SUBSCRIBE_FROM_OLDEST: Start.OLDEST,
    wire.SUBSCRIBE_FROM_NOW: Start.NOW,
}


class LogHostLike(Protocol):
    """What the services need of the driver of a log's core."""

    def post(self, event: SubscriberEvent) -> None:
        """Let the core process ``event`` soon."""


FindHost = Callable[[str, IncarnationId], LogHostLike | None]
"""The host of a stream's log, by the stream and the log's incarnation. An empty incarnation means any log of it."""


class LogRequest:
    """One unary call that waits for the core's answer."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def settle(self, answer: LogAnswer) -> None:
        """The core has answered. No effect if the caller has gone."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: RequestError) -> None:
        """There will be no answer. No effect if the caller has gone."""
        if not self.answer.done():
            self.answer.set_exception(error)


class LogRequests:
    """The requests that wait for an answer."""

    def __init__(self, find: FindHost) -> None:
        self._find = find
        self._waiting: dict[LogRequest, None] = {}

    async def list_cursors(self, request: wire.ListCursorsRequest) -> wire.ListCursorsResponse:
        """The durable cursors of a stream."""
        answer: CursorsAnswer = await self.ask(request.stream, request.incarnation, ListCursors)
        return wire.ListCursorsResponse(cursors=[_cursor_status(request.stream, one) for one in answer.cursors])

    async def delete_cursor(self, request: wire.DeleteCursorRequest) -> wire.DeleteCursorResponse:
        """Delete a cursor. The answer comes when the deletion is durable."""
        await self.ask(request.stream, request.incarnation, lambda asker: DeleteCursor(asker, request.cursor))
        return wire.DeleteCursorResponse()

    async def ask(self, stream: str, incarnation: IncarnationId, event: Callable[[LogRequest], SubscriberEvent]) -> Any:
        """The core's answer to ``event``.

        Raises:
            RequestError: The log does not answer in time, is not served here, or refuses the request.
        """
        host = serving_host(self._find, stream, incarnation)
        request = LogRequest(stream)
        self._waiting[request] = None
        try:
            host.post(event(request))
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await request.answer
        except TimeoutError:
            raise RequestError(
                FailureCode.UNAVAILABLE, f"the log of stream {stream!r} did not answer in time", "try again"
            ) from None
        finally:
            self._waiting.pop(request, None)
        if answer.error is not None:
            raise answer.error
        return answer

    def dropped(self, stream: str) -> None:
        """The log of ``stream`` is not served here any more."""
        for request in self._waiting:
            if request.stream == stream:
                request.fail(not_here(stream))


def not_here(stream: str) -> RequestError:
    """The error for a log that this worker does not own."""
    return RequestError(
        FailureCode.UNAVAILABLE,
        f"this worker does not own the log of stream {stream!r}",
        "ask the master for its owner (EnsureStreamLog), and try again there",
        reason="NOT_OWNER",
    )


def serving_host(find: FindHost, stream: str, incarnation: IncarnationId) -> LogHostLike:
    """The host of the log.

    Raises:
        RequestError: This worker does not own it.
    """
    host = find(stream, incarnation)
    if host is None:
        raise not_here(stream)
    return host


def start_of(request: wire.SubscribeRequest | None) -> wire.SubscribeStart:
    """Check the first request of a call.

    Raises:
        RequestError: It is not a start, or it has an invalid value.
    """
    if request is None or request.WhichOneof("request") != "start":
        raise invalid("a Subscribe call begins with its start", "send start first, ACKs later")
    start = request.start
    if not start.stream:
        raise invalid("the start names no stream", "set start.stream")
    if max(len(start.cursor.encode()), len(start.subscriber_id.encode())) > _MAX_NAME:
        raise invalid(f"the cursor's or subscriber's name is longer than {_MAX_NAME} bytes", "choose a shorter one")
    if start.window < 0:
        raise invalid(f"the window is {start.window}", "set it to at least 1, or to 0 for the default")
    if start.begin and start.begin not in _STARTS:
        raise invalid(f"start.begin has the unknown value {start.begin}", "use OLDEST or NOW")
    return start


def begin_of(start: wire.SubscribeStart) -> Start:
    """Where a new cursor or a tail starts."""
    return _STARTS.get(start.begin) or (Start.OLDEST if start.cursor else Start.NOW)


def invalid(message: str, remedy: str) -> RequestError:
    """The error for an invalid request."""
    return RequestError(FailureCode.INVALID_ARGUMENT, message, remedy)


def _cursor_status(stream: str, info: CursorInfo) -> wire.CursorStatus:
    """A cursor, as operators receive it."""
    return wire.CursorStatus(stream=stream, cursor=info.name, acked_offset=info.acked, end_offset=info.end)
