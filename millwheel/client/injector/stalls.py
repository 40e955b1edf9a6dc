"""Which computation does not ACK what an injector sent, and why (sections 4.5, 6.1.1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from millwheel.client.injector.errors import InjectorError
from millwheel.client.injector.routing import ConsumerRouting, Route
from millwheel.client.injector.session import Session
from millwheel.core.wording import counted
from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import inspection_pb2 as inspection
from millwheel.rpc.v1.inspection_pb2_grpc import InspectionServiceStub

__all__ = ["AckWatch", "Explain", "StallMonitor"]

log = logging.getLogger("millwheel.client")

Explain = Callable[[str], Awaitable[str]]
"""Says why a computation, given by its incarnation, does not commit what it was sent; empty if that is unknown."""

_LOOK_SECONDS: Final = 1.0
_STALL_SECONDS: Final = 10.0
_STUCK_SECONDS: Final = 60.0
"""A batch of slow records is ACKed in parts, so its oldest record may take longer than the first ACK."""
_ASK_SECONDS: Final = 5.0
_MAX_CONSUMERS: Final = 3
"""How many computations are asked about and named."""


class AckWatch:
    """Recognises that ACKs do not come. Pure; times are seconds of any steady clock."""

    def __init__(self, silent: float = _STALL_SECONDS, stuck: float = _STUCK_SECONDS) -> None:
        """``silent``: seconds without any ACK. ``stuck``: seconds in which the oldest record is not ACKed."""
        self._silent = silent
        self._stuck = stuck
        self._acked = self._oldest = -1
        self._acked_at = self._oldest_at = 0.0

    def look(self, now: float, acked: int, oldest: int, unacked: int) -> bool:
        """Whether records wait, and nothing was ACKed for long, or the oldest of them was not.

        Args:
            now: The time.
            acked: How many ACKs have come, ever.
            oldest: The number of the oldest record that is not ACKed, or a lower bound.
            unacked: How many records are not ACKed.
        """
        if not unacked or acked != self._acked:
            self._acked, self._acked_at = acked, now
        if not unacked or oldest != self._oldest:
            self._oldest, self._oldest_at = oldest, now
        return now - self._acked_at >= self._silent or now - self._oldest_at >= self._stuck


class StallMonitor:
    """Looks whether ACKs come. If none does for ten seconds, it asks why, logs it, and keeps the text."""

    def __init__(self, session: Session, explain: Explain | None) -> None:
        self.text = ""
        """Which computation does not ACK, and why; empty while ACKs come."""
        self._session = session
        self._explain = explain
        self._watch = AckWatch()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run(), name=f"ACKs of {self._session.core.stream}")

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        core = self._session.core
        loop = asyncio.get_running_loop()
        logged = ""
        while core.failed is None:
            await asyncio.sleep(_LOOK_SECONDS)
            if not self._watch.look(loop.time(), core.acked, core.oldest_unacked(), core.unacked):
                self.text = logged = ""
                continue
            try:
                self.text = await self.explain()
            except Exception as error:
                # To say less is better than to stop looking.
                records = counted(core.unacked_records(), "record")
                self.text = f"without ACK: {records} ({type(error).__name__}: {error})"
            if self.text != logged:
                logged = self.text
                log.warning("injector %s of stream %r waits for ACKs: %s", core.process, core.stream, logged)
            await asyncio.sleep(_STALL_SECONDS / 2)

    async def explain(self) -> str:
        """Which computations have not ACKed everything, and why; empty if all have."""
        core = self._session.core
        waiting = core.unkeyed.consumers()
        counts = sorted(core.unacked_by_consumer().items(), key=lambda item: -item[1])
        parts = []
        for incarnation, count in counts[:_MAX_CONSUMERS]:
            _, why = waiting.get(incarnation, (0, ""))
            why = f"there is no key for the first of them: {why}" if why else await self._why(incarnation)
            fact = f"{self.named(incarnation)} has not ACKed {counted(count, 'record')}"
            parts.append(f"{fact}: {why}" if why else fact)
        if len(counts) > _MAX_CONSUMERS:
            parts.append(f"and {len(counts) - _MAX_CONSUMERS} more computations have not ACKed everything")
        return "; ".join(parts)

    def named(self, incarnation: str) -> str:
        """A consumer as people know it."""
        consumer = self._consumer(incarnation)
        if consumer is None or consumer.log:
            return f"the log of stream {self._session.core.stream!r}" if consumer is not None else incarnation
        return f"{consumer.topology}/{consumer.computation}"

    def _consumer(self, incarnation: str) -> ConsumerRouting | None:
        routing = self._session.core.routing
        return None if routing is None else routing.consumers.get(incarnation)

    async def _why(self, incarnation: str) -> str:
        consumer = self._consumer(incarnation)
        if consumer is None or consumer.log:
            return self._session.unreachable()
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                raised = await self._session.hook_failures(consumer.topology, consumer.computation)
                if raised:
                    return "; ".join(raised)
                why = "" if self._explain is None else await self._explain(incarnation)
                return why or await self._ask_owner(incarnation)
        except TimeoutError:
            return self._session.unreachable() or f"the server does not say why within {_ASK_SECONDS:g} s"
        except (RequestError, InjectorError) as error:
            return self._session.unreachable() or f"the server does not say why: {error}"

    async def _ask_owner(self, incarnation: str) -> str:
        """What the owner of the oldest record's interval says of itself."""
        route = self._session.core.oldest_route(incarnation)
        if route is None:
            return ""
        if not route.address:
            return f"no worker owns its interval {route.keys}: its topology is being opened, or is paused"
        return await _interval_status(route)


async def _interval_status(route: Route) -> str:
    async with open_channel(route.address) as channel:
        stub: Any = InspectionServiceStub(channel)
        request = inspection.GetIntervalStatusRequest(journal=route.journal)
        try:
            status: inspection.GetIntervalStatusResponse = await stub.GetIntervalStatus(request, timeout=_ASK_SECONDS)
        except grpc.aio.AioRpcError as error:
            return f"interval {route.keys}: {from_rpc_error(error, route.address)}"
    if status.stopped:
        return f"interval {route.keys} has stopped by its failure policy: {status.stopped}"
    return (
        f"interval {route.keys} at worker {route.address} has {counted(status.queued_records, 'record')} "
        f"without a commit; `millwheel watermark explain` and the worker's log say more"
    )
