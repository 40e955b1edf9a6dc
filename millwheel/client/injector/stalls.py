"""Finds the computation that does not ACK an injector's records, and the reason (sections 4.5, 6.1.1)."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from millwheel.client.injector.errors import InjectorError
from millwheel.client.injector.routing import ConsumerRouting, Route
from millwheel.client.injector.session import InjectorSession
from millwheel.client.injector.unacked import oldest_route, unacked_by_consumer, unacked_records
from millwheel.model.incarnation import IncarnationId
from millwheel.model.wording import counted
from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.failures import RequestError
from millwheel.rpc.hook_failures import blocks
from millwheel.rpc.v1 import inspection_pb2 as inspection
from millwheel.rpc.v1.inspection_pb2_grpc import InspectionServiceStub

__all__ = ["AckWatch", "Explain", "ReasonLog", "StallMonitor"]

log = logging.getLogger("millwheel.client")

_NUMBER: Final = re.compile(r"\d+([.,]\d+)*")

Explain = Callable[[IncarnationId], Awaitable[str]]
"""Says why a computation, given by its incarnation, does not commit delivered records. Empty if that is unknown."""

CHECK_SECONDS: Final = 1.0
_STALL_SECONDS: Final = 10.0
_STUCK_SECONDS: Final = 60.0
"""Longer than ``_STALL_SECONDS``: a batch of slow records is ACKed in parts, so its oldest record may take longer."""
ASK_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 60.0
"""The same reason is logged so often."""
_MAX_REASONS: Final = 16
_MAX_CONSUMERS: Final = 3
"""The most computations to examine and name."""


class AckWatch:
    """Detects missing ACKs. Pure. Times are seconds of any steady clock."""

    def __init__(self, silent: float = _STALL_SECONDS, stuck: float = _STUCK_SECONDS) -> None:
        """``silent``: seconds without any ACK. ``stuck``: seconds in which the oldest record stays un-ACKed."""
        self._silent = silent
        self._stuck = stuck
        self._acked = self._oldest = -1
        self._acked_at = self._oldest_at = 0.0

    def missing(self, now: float, acked: int, oldest: int, unacked: int) -> bool:
        """Whether ACKs are missing: none has arrived for ``silent`` seconds, or the oldest record is stuck.

        Args:
            now: The time, in seconds.
            acked: How many ACKs have arrived in total.
            oldest: The number of the oldest un-ACKed record, or a lower bound.
            unacked: How many records are un-ACKed.
        """
        if not unacked or acked != self._acked:
            self._acked, self._acked_at = acked, now
        if not unacked or oldest != self._oldest:
            self._oldest, self._oldest_at = oldest, now
        return now - self._acked_at >= self._silent or now - self._oldest_at >= self._stuck


class ReasonLog:
    """Decides which reasons are logged: each at once, and then once a minute while it holds. Pure.

    Texts that differ in their numbers alone are one reason: a countdown or the number of records changes each time.
    """

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}
        """By the reason, when it was logged."""

    def due(self, now: float, text: str) -> bool:
        """Whether to log ``text`` now. ``now``: in seconds of any steady clock."""
        reason = _NUMBER.sub("0", text)
        if now - self._logged.get(reason, now - _AGAIN_SECONDS) < _AGAIN_SECONDS:
            return False
        self._logged.pop(reason, None)
        if len(self._logged) >= _MAX_REASONS:
            del self._logged[next(iter(self._logged))]  # the one that was logged first
        self._logged[reason] = now
        return True


class StallMonitor:
    """Watches ACKs. If they are missing, it finds out why, logs the reason, and keeps it in ``text``."""

    def __init__(self, session: InjectorSession, explain: Explain | None) -> None:
        self.text = ""
        """Which computation does not ACK, and why. Empty while ACKs arrive."""
        self._session = session
        self._explain = explain
        self._watch = AckWatch()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to watch."""
        self._task = asyncio.create_task(self._run(), name=f"ACKs of {self._session.core.stream}")

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        core = self._session.core
        loop = asyncio.get_running_loop()
        reasons = ReasonLog()
        while core.failed is None:
            await asyncio.sleep(CHECK_SECONDS)
            if not self._watch.missing(loop.time(), core.acked, core.oldest_unacked(), core.unacked):
                self.text = ""
                continue
            try:
                self.text = await self.explain()
            except Exception as error:
                # A less detailed text is better than the end of this task.
                records = counted(unacked_records(core), "record")
                self.text = f"without ACK: {records} ({type(error).__name__}: {error})"
            if reasons.due(loop.time(), self.text):
                log.warning("injector %s of stream %r waits for ACKs: %s", core.process, core.stream, self.text)
            await asyncio.sleep(_STALL_SECONDS / 2)

    async def explain(self) -> str:
        """Which computations have un-ACKed records, and why. Empty if none has."""
        core = self._session.core
        waiting = core.unkeyed.consumers()
        counts = sorted(unacked_by_consumer(core).items(), key=lambda item: -item[1])
        parts = []
        for incarnation, count in counts[:_MAX_CONSUMERS]:
            _, why = waiting.get(incarnation, (0, ""))
            why = f"there is no key for the first of them: {why}" if why else await self._why(incarnation)
            fact = f"{self.named(incarnation)} has not ACKed {counted(count, 'record')}"
            parts.append(f"{fact}: {why}" if why else fact)
        if len(counts) > _MAX_CONSUMERS:
            parts.append(f"and {len(counts) - _MAX_CONSUMERS} more computations have not ACKed everything")
        return "; ".join(parts)

    def named(self, incarnation: IncarnationId) -> str:
        """A consumer's name for users: topology and computation, or the stream's log."""
        consumer = self._consumer(incarnation)
        if consumer is None or consumer.log:
            return f"the log of stream {self._session.core.stream!r}" if consumer is not None else incarnation
        return f"{consumer.topology}/{consumer.computation}"

    def _consumer(self, incarnation: IncarnationId) -> ConsumerRouting | None:
        routing = self._session.core.routing
        return None if routing is None else routing.consumers.get(incarnation)

    async def _why(self, incarnation: IncarnationId) -> str:
        consumer = self._consumer(incarnation)
        if consumer is None or consumer.log:
            return self._session.control.unreachable()
        try:
            async with asyncio.timeout(ASK_SECONDS):
                raised = await self._hook_failures(consumer)
                if raised:
                    return "; ".join(raised)
                why = "" if self._explain is None else await self._explain(incarnation)
                return why or await self._ask_owner(incarnation)
        except TimeoutError:
            return self._session.control.unreachable() or f"the server does not say why within {ASK_SECONDS:g} s"
        except (RequestError, InjectorError) as error:
            return self._session.control.unreachable() or f"the server does not say why: {error}"

    async def _hook_failures(self, consumer: ConsumerRouting) -> list[str]:
        """Failures of a consumer's hooks that keep delivered records from being ACKed, as sentences."""
        control, stream = self._session.control, self._session.core.stream
        found = await control.hook_failures(consumer.topology, consumer.computation, stream)
        return [one.text for one in found if blocks(one.failures, one.stopped)]

    async def _ask_owner(self, incarnation: IncarnationId) -> str:
        """The state of the oldest record's interval, as reported by its owner."""
        route = oldest_route(self._session.core, incarnation)
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
            status: inspection.GetIntervalStatusResponse = await stub.GetIntervalStatus(request, timeout=ASK_SECONDS)
        except grpc.aio.AioRpcError as error:
            return f"interval {route.keys}: {from_rpc_error(error, route.address)}"
    if status.stopped:
        return f"interval {route.keys} has stopped by its failure policy: {status.stopped}"
    return (
        f"interval {route.keys} at worker {route.address} has {counted(status.queued_records, 'record')} "
        f"without a commit; `millwheel watermark explain` and the worker's log say more"
    )
