"""Finds the owner of a stream's log at the master, and finds it again after a move."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from millwheel.client.control import ControlClient
from millwheel.client.subscription.reading import LogCall
from millwheel.model.backoff import Backoff
from millwheel.rpc.channel import PASSING
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.rpc.waiting import wait_notices

__all__ = ["LogLink", "log_address"]

log = logging.getLogger("millwheel.client")


class LogLink:
    """The calls to the successive owners of a log. ``call`` is the newest, if there is one."""

    def __init__(self, control: ControlClient, stream: str, patience: float, incarnation: str = "") -> None:
        self.call: LogCall | None = None
        self.spec = specs.StreamSpec()
        self.created_at = 0
        """Since when the log keeps records, as wall time in microseconds. 0 if that is unknown."""
        self.created = False
        """Whether this subscriber created the log."""
        self._control = control
        self._stream = stream
        self._patience = patience
        self._backoff = Backoff()
        self.incarnation = incarnation
        """Which log it is, once it is found."""
        self._failure: RequestError | None = None
        """Why the last call ended."""

    async def close(self) -> None:
        """Close all connections."""
        await self._close_call()
        await self._control.close()

    async def _close_call(self) -> None:
        call, self.call = self.call, None
        if call is not None:
            await call.close()

    async def reopen(
        self, opening: Callable[[], list[wire.SubscribeRequest]], failure: RequestError | None
    ) -> wire.SubscribeResponse:
        """The first response of a new call. The call is opened again after failures, for up to ``patience`` seconds.

        While the reader waits for the log, and not for records, the program's log has notices about it.

        Args:
            opening: Returns the first requests of a new call. Between this and the call nothing else runs: what
                happens until then is in the requests, and what happens later can be written to the call.
            failure: Why the former call ended. None: there was none.
        """
        self._failure = failure
        loop = asyncio.get_running_loop()
        failures, since = 0, 0.0
        with wait_notices(self._notice, log.warning):
            while True:
                if self._failure is not None:
                    await self._close_call()
                    since = loop.time() if failures == 0 else since
                    failures += 1
                    remaining = since + self._patience - loop.time()
                    if not _passes(self._failure) or remaining <= 0:
                        raise self._failure
                    await asyncio.sleep(min(remaining, self._backoff.delay(failures, random.random())))
                try:
                    call = await self._open(opening)
                    return await call.read()
                except RequestError as error:
                    self._failure = error

    def _notice(self, seconds: float) -> str:
        awaited = self._control.awaited()
        if self._control.failure is None and self._failure is not None:
            awaited = f"a worker to serve it: {self._failure.message}"
        return (
            f"the subscription of stream {self._stream!r} has waited {seconds:.0f} s, {self._patience:g} s at most, "
            f"for {awaited}"
        )

    async def _open(self, opening: Callable[[], list[wire.SubscribeRequest]]) -> LogCall:
        place = await self._control.ensure_stream_log(self._stream)
        # A short name may stand for several streams later. From now on it is this one.
        self._stream = place.stream.name
        # A log that was just created has no owner yet. The next attempt finds the owner.
        self.created_at, self.created = place.created_at_us, self.created or place.created
        address = log_address(self._stream, place.owner.address)
        if self.incarnation not in ("", place.incarnation):
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"the log of stream {self._stream!r} was replaced by another, whose offsets start again",
                "subscribe again",
                reason="STREAM_LOG_REPLACED",
            )
        self.incarnation, self.spec = place.incarnation, place.stream
        await self._close_call()
        requests = opening()
        for request in requests:
            if request.HasField("start"):
                request.start.stream, request.start.incarnation = self._stream, place.incarnation
        self.call = call = LogCall(self._stream, address, self._moved)
        await call.begin(requests)
        return call

    async def _moved(self, address: str) -> bool:
        """Whether another worker owns the log now. False if the master does not answer, or no worker owns the log."""
        try:
            place = await self._control.ensure_stream_log(self._stream)
        except RequestError:
            return False
        return place.owner.address not in ("", address)


def _passes(error: RequestError) -> bool:
    """Whether another call may succeed."""
    return error.code in PASSING and error.reason != "CURSOR_TAKEN_OVER"


def log_address(stream: str, owner: str) -> str:
    """The address of the log's owner.

    Raises:
        RequestError: No worker owns the log now (UNAVAILABLE).
    """
    if not owner:
        raise RequestError(
            FailureCode.UNAVAILABLE, f"no worker owns the log of stream {stream!r} now", "wait, or start a worker"
        )
    return owner
