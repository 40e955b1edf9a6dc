"""The connection to a stream's log. It finds the owner at the master, and finds it again after a move."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import grpc

from millwheel.client.control import ControlClient
from millwheel.model.backoff import Backoff
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS, PASSING, open_channel
from millwheel.rpc.errors import calling, from_rpc_error
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.rpc.v1.subscription_pb2_grpc import SubscriptionServiceStub
from millwheel.rpc.waiting import wait_notices

__all__ = ["MAX_SILENCE_SECONDS", "CursorStatus", "LogLink", "delete_cursor", "list_cursors"]

log = logging.getLogger("millwheel.client")

MAX_SILENCE_SECONDS: Final = 3.0
"""Seconds without a response before a request to the master checks whether the log has moved.

A paused or unreachable owner does not end the call. Another worker has the log long before gRPC detects the failure."""


class LogLink:
    """The call to the current owner of a log. It is opened again after failures."""

    def __init__(self, control: ControlClient, stream: str, patience: float) -> None:
        self._control = control
        self._stream = stream
        self._patience = patience
        self._backoff = Backoff()
        self.spec = specs.StreamSpec()
        self.created_at = 0
        """Since when the log keeps records, as wall time in microseconds. 0 if that is unknown."""
        self.created = False
        """Whether this subscriber created the log."""
        self._incarnation = ""
        self._address = ""
        self._channel: grpc.aio.Channel | None = None
        self._call: grpc.aio.StreamStreamCall[wire.SubscribeRequest, wire.SubscribeResponse] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._waits_since: float | None = None
        """Since when the current reader waits for a response, by the loop's clock. None while there is no reader."""
        self._has_moved = False
        """Whether the call was cancelled because the log has moved."""
        self._failure: RequestError | None = None
        """Why the last call ended."""

    async def close(self) -> None:
        """Close all connections."""
        await self._close_connection()
        await self._control.close()

    async def _close_connection(self) -> None:
        call, self._call = self._call, None
        channel, self._channel = self._channel, None
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
        if call is not None:
            call.cancel()
        if channel is not None:
            await channel.close(None)

    async def write(self, request: wire.SubscribeRequest) -> None:
        """Send on the current call.

        If the call is broken, nothing is sent: the next call's first requests say the same.
        """
        if self._call is None:
            return
        before = _cancellations()
        try:
            await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return
        except asyncio.CancelledError:
            self._call = None
            if not self._has_moved or _cancellations() > before:
                raise

    async def read(self, opening: Callable[[], list[wire.SubscribeRequest]]) -> wire.SubscribeResponse:
        """The next response. If there is no call, a new one is opened, with the requests that ``opening`` returns.

        While the reader waits for the log, and not for records, the program's log has notices about it.
        """
        failure: RequestError | None = None
        if self._call is not None:
            try:
                return await self._read_once(opening)
            except RequestError as error:
                failure = error
        self._failure = failure
        with wait_notices(self._notice, log.warning):
            return await self._read_again(opening)

    def _notice(self, seconds: float) -> str:
        awaited = self._control.awaited()
        if self._control.failure is None and self._failure is not None:
            awaited = f"a worker to serve it: {self._failure.message}"
        return (
            f"the subscription of stream {self._stream!r} has waited {seconds:.0f} s, {self._patience:g} s at most, "
            f"for {awaited}"
        )

    async def _read_again(self, opening: Callable[[], list[wire.SubscribeRequest]]) -> wire.SubscribeResponse:
        """The first response of a new call. The call is opened again after failures, for up to ``patience`` seconds."""
        loop = asyncio.get_running_loop()
        failures, since = 0, 0.0
        while True:
            if self._failure is not None:
                await self._close_connection()
                since = loop.time() if failures == 0 else since
                failures += 1
                remaining = since + self._patience - loop.time()
                if not _passes(self._failure) or remaining <= 0:
                    raise self._failure
                await asyncio.sleep(min(remaining, self._backoff.delay(failures, random.random())))
            try:
                return await self._read_once(opening)
            except RequestError as error:
                self._failure = error

    async def _read_once(self, opening: Callable[[], list[wire.SubscribeRequest]]) -> wire.SubscribeResponse:
        before = _cancellations()
        try:
            if self._call is None:
                await self._open(opening())
            assert self._call is not None
            self._waits_since = asyncio.get_running_loop().time()
            response = await self._call.read()
            if isinstance(response, wire.SubscribeResponse):
                return response
            code = await self._call.code()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, f"the log of stream {self._stream!r}") from error
        except asyncio.CancelledError:
            # gRPC cancels the call together with its reader. So the next reader opens another call, and continues
            # there.
            self._call = None
            if not self._has_moved or _cancellations() > before:
                raise
            raise RequestError(FailureCode.UNAVAILABLE, f"the log of stream {self._stream!r} has moved", "") from None
        finally:
            self._waits_since = None
        raise RequestError(FailureCode.UNAVAILABLE, f"the log of stream {self._stream!r} ended the call ({code})")

    async def _watch(self, call: grpc.aio.StreamStreamCall[wire.SubscribeRequest, wire.SubscribeResponse]) -> None:
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
            if await self._moved() and self._waits_since == since:
                self._has_moved = True
                call.cancel()
                return
            await asyncio.sleep(MAX_SILENCE_SECONDS)

    async def _moved(self) -> bool:
        """Whether another worker owns the log now. False if the master does not answer, or no worker owns the log."""
        try:
            place = await _place_of(self._control, self._stream)
        except RequestError:
            return False
        return place.owner.address != self._address

    async def _open(self, requests: list[wire.SubscribeRequest]) -> None:
        place = await self._control.ensure_stream_log(self._stream)
        # A short name may stand for several streams later. From now on it is this one.
        self._stream = place.stream.name
        # A log that was just created has no owner yet. The next call finds the owner.
        self.created_at, self.created = place.created_at_us, self.created or place.created
        _address(self._stream, place.owner.address)
        if self._incarnation not in ("", place.incarnation):
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"the log of stream {self._stream!r} was replaced by another, whose offsets start again",
                "subscribe again",
                reason="STREAM_LOG_REPLACED",
            )
        self._incarnation, self.spec = place.incarnation, place.stream
        for request in requests:
            if request.HasField("start"):
                request.start.stream, request.start.incarnation = self._stream, place.incarnation
        await self._close_connection()
        self._address = place.owner.address
        self._channel = open_channel(self._address)
        self._call = SubscriptionServiceStub(self._channel).Subscribe()  # type: ignore[call-arg]  # the stubs know no call that is written to
        self._has_moved = False
        self._watching = asyncio.create_task(self._watch(self._call))
        # A call that has ended cannot be written to. Its reader gets the reason.
        with suppress(asyncio.InvalidStateError):
            for request in requests:
                await self._call.write(request)


def _cancellations() -> int:
    """How often this task was cancelled. gRPC also shows the end of a call as a cancellation, which is not counted."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _passes(error: RequestError) -> bool:
    """Whether another call may succeed."""
    return error.code in PASSING and error.reason != "CURSOR_TAKEN_OVER"


async def _place_of(client: ControlClient, stream: str) -> control.EnsureStreamLogResponse:
    """The place of the stream's log, created if necessary. RequestError (UNAVAILABLE) while no worker owns it."""
    place = await client.ensure_stream_log(stream)
    _address(stream, place.owner.address)
    return place


def _address(stream: str, owner: str) -> str:
    if not owner:
        raise RequestError(
            FailureCode.UNAVAILABLE, f"no worker owns the log of stream {stream!r} now", "wait, or start a worker"
        )
    return owner


@dataclass(frozen=True, slots=True)
class CursorStatus:
    """A durable cursor. Records below ``acked`` are processed. The stream's next record gets the offset ``end``."""

    stream: str
    name: str
    acked: int
    end: int


async def _present_owner(client: ControlClient, stream: str) -> tuple[str, str, str]:
    """The stream's full name, the address of the worker that owns its log, and the log's incarnation.

    The last two are empty if there is no log. None is created.
    """
    routing = await client.routing(stream)
    log = next((consumer for consumer in routing.consumers if consumer.log), None)
    if log is None:
        return routing.stream.name, "", ""
    address = _address(routing.stream.name, log.intervals.intervals[0].owner.address)
    return routing.stream.name, address, log.incarnation


async def list_cursors(stream: str, client: ControlClient) -> list[CursorStatus]:
    """The durable cursors of a stream, ordered by name. A stream without a log has none."""
    stream, address, incarnation = await _present_owner(client, stream)
    if not address:
        return []
    async with calling(address), open_channel(address) as channel:
        request = wire.ListCursorsRequest(stream=stream, incarnation=incarnation)
        answer = await SubscriptionServiceStub(channel).ListCursors(request, timeout=DEFAULT_DEADLINE_SECONDS)
    return [CursorStatus(one.stream, one.cursor, one.acked_offset, one.end_offset) for one in answer.cursors]


async def delete_cursor(stream: str, cursor: str, client: ControlClient) -> None:
    """Delete a durable cursor permanently. Records that only this cursor kept may be deleted too.

    Raises:
        RequestError: The stream has no such cursor (NOT_FOUND), or no worker owns the log (UNAVAILABLE).
    """
    stream, address, incarnation = await _present_owner(client, stream)
    if not address:
        raise RequestError(
            FailureCode.NOT_FOUND,
            f"stream {stream!r} has no cursor {cursor!r}",
            "list them with `millwheel stream cursors list`",
        )
    async with calling(address), open_channel(address) as channel:
        request = wire.DeleteCursorRequest(stream=stream, cursor=cursor, incarnation=incarnation)
        await SubscriptionServiceStub(channel).DeleteCursor(request, timeout=DEFAULT_DEADLINE_SECONDS)
