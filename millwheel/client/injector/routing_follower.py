"""Follows a stream's routing at the masters, and requests the current one when a record looks wrong (4.2, 7.1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from millwheel.client.control import ControlClient
from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.errors import InjectorError
from millwheel.client.injector.routing import ConsumerRouting, Route, StreamRouting
from millwheel.model.keys import KeyInterval
from millwheel.rpc.channel import RETRYABLE
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import control_pb2

__all__ = ["RoutingFollower", "SharedFetches", "routing_from_wire"]

log = logging.getLogger("millwheel.client")

_PAUSE_SECONDS: Final = 1.0
"""Seconds before the next attempt to follow the routing, after masters did not answer within ``patience``."""
_FETCH_SECONDS: Final = 2.0
"""Time limit of one fetch of the routing. After that, the known routing stays in use."""
_REST_SECONDS: Final = 0.02
"""The pause between two fetches. So a process sends at most 50 of these requests a second, however many records it
refuses."""


class RoutingFollower:
    """Passes each new routing of one stream on, even if masters do not answer for long."""

    def __init__(
        self,
        control: ControlClient,
        core: InjectorCore,
        take: Callable[[StreamRouting, control_pb2.WatchRoutingResponse], None],
        fail: Callable[[InjectorError], None],
    ) -> None:
        """Create a follower.

        Args:
            control: The masters.
            core: The core of the stream's injector, which has the current routing.
            take: Called with each routing, and with the message that it came in.
            fail: Called if the routing cannot be followed any more.
        """
        self._control = control
        self._core = core
        self._stream = core.stream
        self._take = take
        self._fail = fail
        self.task: asyncio.Task[None] | None = None
        self.fetches = SharedFetches(self._fetch)
        """Requests for a master's current routing. A change that the caller knows of may not have arrived yet."""

    def start(self) -> None:
        """Start to follow."""
        self.task = asyncio.create_task(self._run(), name=f"routing of {self._stream}")

    async def close(self) -> None:
        """Stop to follow, and end all fetches."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        await self.fetches.close()

    async def _run(self) -> None:
        while await self._follow():
            log.warning("stream %r: no master sends the routing; the last one is kept", self._stream)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _follow(self) -> bool:
        """Follow the routing until that fails. A master's refusal ends the session. Returns whether to try again."""
        stream = self._stream
        try:
            async for response in self._control.watch_routing(stream):
                try:
                    routing = routing_from_wire(response)
                except ValueError as error:
                    log.error("routing of stream %r: %s; the one before is kept", stream, error)
                    continue
                self._take(routing, response)
            self._fail(InjectorError(f"the master ended the routing of stream {stream!r}"))
        except RequestError as error:
            if error.code in RETRYABLE and self._core.routing is not None:
                return True
            self._fail(
                InjectorError(
                    f"the routing of stream {stream!r} is lost: {error}; what is not ACKed is unsure: send it again "
                    "from a new injector, under the ids that it has"
                )
            )
        except Exception as error:
            log.exception("routing of stream %r", stream)
            self._fail(InjectorError(f"the routing of stream {stream!r} was not understood: {error!r}"))
        return False

    async def _fetch(self) -> None:
        """Request a master's current routing and use it. If no master answers in time, the known routing stays."""
        with suppress(RequestError, ValueError, TimeoutError):
            async with asyncio.timeout(_FETCH_SECONDS):
                response = await self._control.routing(self._stream)
            routing = routing_from_wire(response)
            known = self._core.routing
            if known is not None and routing.revision >= known.revision:
                self._take(routing, response)


class SharedFetches:
    """Runs ``fetch`` for its callers, one at a time.

    A fetch that began before a call may miss a change that the caller knows of. So the call waits for the next fetch.
    All calls that arrive meanwhile share that fetch.

    Invariant: a fetch may be delayed, but it is never skipped. Otherwise a call could get an outdated result.
    """

    def __init__(self, fetch: Callable[[], Awaitable[None]]) -> None:
        self.begun = 0
        """How many fetches have begun."""
        self._fetch = fetch
        self._ended = 0
        self._task: asyncio.Task[None] | None = None
        self._next_at = 0.0
        self._closed = False

    async def after(self, begun: int) -> None:
        """Wait for the end of a fetch that began after the first ``begun`` ones. Returns at once after :meth:`close`.

        Args:
            begun: The value of :attr:`begun` when the caller was called.

        Raises:
            Exception: The exception of ``fetch``.
        """
        while self._ended <= begun and not self._closed:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run(), name="a fetch of the routing")
            task = self._task
            # ``await task`` would cancel the shared fetch if this caller is cancelled. ``asyncio.wait`` does not.
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def close(self) -> None:
        """Stop the fetches. All waiting calls return."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        if (rest := self._next_at - loop.time()) > 0:
            await asyncio.sleep(rest)
        self.begun += 1
        try:
            await self._fetch()
        finally:
            self._ended = self.begun
            self._next_at = loop.time() + _REST_SECONDS


def routing_from_wire(message: control_pb2.WatchRoutingResponse) -> StreamRouting:
    """Convert a message. ValueError if the intervals of a consumer do not cover every key once."""
    consumers = (_consumer(route) for route in message.consumers)
    return StreamRouting(
        message.revision,
        {consumer.incarnation: consumer for consumer in consumers},
        message.draining,
        message.stream.allowed_skew_us,
        message.stream.format,
        message.stream.record_type,
        tuple(message.schemas),
        message.id_stream or message.stream.name,
        message.stream.id_slack_us,
        message.position_ranges,
        message.column_batches,
    )


def _consumer(message: control_pb2.ConsumerRoute) -> ConsumerRouting:
    routes = [
        Route(
            KeyInterval(interval.keys.start, interval.keys.end if interval.keys.HasField("end") else None),
            interval.journal,
            interval.owner.address if interval.HasField("owner") else "",
            (interval.sequencer, interval.owner_revision),
        )
        for interval in message.intervals.intervals
    ]
    return ConsumerRouting(
        message.incarnation,
        routes,
        topology=message.topology,
        computation=message.computation,
        fields=message.key.fields,
        function=message.key.function,
        log=message.log,
        same=message.key.same_key.encode() if message.key.HasField("same_key") else None,
        rows_by_function=message.key.rows_by_function,
    )
