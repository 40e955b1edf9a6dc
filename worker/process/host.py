"""Drives the cores of one process: their start, their failures and their end. A host makes no decisions.

What it does with each event is in :mod:`millwheel.worker.process.event_host`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Final, Protocol

from millwheel.errors import NotInstalledError
from millwheel.rpc.clock import wall_now
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.sdk.error_texts import error_message
from millwheel.store.contract import CorruptValueError, StateStore, StoreError
from millwheel.worker.log.messages import SubscriberEffect
from millwheel.worker.messages import (
    Delivery,
    Deposed,
    HookFailed,
    HookReport,
    OpenFailed,
    PrepareRelease,
    ReleasePrepared,
    Report,
    SendDelivery,
    SnapshotEvent,
    SnapshotHoldAnswer,
    Started,
)
from millwheel.worker.process.calls import CallPeers, HostCalls
from millwheel.worker.process.event_host import EventHost, HostedCore, HostedEvent, refuse_not_owner
from millwheel.worker.process.opening import ReadAhead
from millwheel.worker.process.run_queue import RunShare

__all__ = ["CoreHost", "HostPeers", "RunningInterval"]

log = logging.getLogger("millwheel.worker")

CLOSE_SECONDS: Final = 5.0
"""How long a closing host waits for hooks to react to their cancellation. The worker's next steps wait for the host."""


class RunningInterval(Protocol):
    """An interval that runs in this process."""

    host: CoreHost


class HostPeers(CallPeers, Protocol):
    """What a host needs besides the store."""

    def send(self, host: CoreHost, send: SendDelivery, /) -> None:
        """Send a batch to its owner, in this process or another. The answer is posted to ``host``."""

    def report(self, report: Report, /) -> None:
        """Report to the authority."""

    def lost(self, host: CoreHost, reason: str) -> None:
        """The host's core has lost the interval: it is not the owner any more."""


class CoreHost(EventHost):
    """One core in this process. All events enter through ``post``.

    Invariant: every posted delivery is answered, by the core or, once the host is closed, by NOT_OWNER. ``fault`` names
    the internal error that ended the core, if any. In that case the interval has no successor yet.
    """

    def __init__(
        self,
        journal: str,
        core: HostedCore,
        store: StateStore,
        peers: HostPeers,
        queue: RunShare,
        hooks: Callable[[HookReport], None] | None = None,
        subscribers: Callable[[SubscriberEffect], None] | None = None,
        ahead: ReadAhead | None = None,
        clock: Callable[[], int] = wall_now,
        refused: Callable[[Delivery, DeliveryOutcome.ValueType], None] = lambda delivery, outcome: None,
    ) -> None:
        """
        Args:
            journal: The interval's journal.
            core: The core to drive.
            store: The store with the journal and the state rows.
            peers: Other owners and the authority.
            queue: Its topology's share of the worker's run queue.
            hooks: Takes the reports about hooks. None: the log.
            subscribers: Performs the effects of a stream log on its subscribers. An interval core has none.
            ahead: Base parts that were read ahead.
            clock: The clock of the core, in microseconds.
            refused: Counts the refusals of deliveries.
        """
        super().__init__(
            journal,
            core,
            store,
            queue,
            clock,
            partial(peers.send, self),
            peers.report,
            _log_hook if hooks is None else hooks,
            _no_subscribers if subscribers is None else subscribers,
            refused,
        )
        self._peers = peers
        self._calls = HostCalls(self, store, peers, self.retried, {} if ahead is None else ahead)
        self._requests: set[asyncio.Future[Any]] = set()
        """Requests for which the core has no answer yet."""
        self.fault = ""
        self.damage = ""
        """The missing or damaged stored value, if it is the reason why the interval was given up."""
        self.handed_over_at = -inf
        """When the interval was last made ready for another owner, as a master asks before it moves it: a time of the
        event loop."""
        self.not_installed = ""
        """What is not installed at this worker, if it is the reason why the interval was given up."""

    def start(self) -> None:
        """Start the core."""
        self._step(Started())

    # Errors.

    def _lost(self, event: Deposed | OpenFailed) -> None:
        if isinstance(event, OpenFailed) and event.damaged:
            self.damage = event.reason
        self._give_up(event.reason)

    def failed(self, error: BaseException) -> None:
        """Give the interval up. Stored data that is damaged would stop a successor, too: it is quarantined."""
        if isinstance(error, StoreError) and not isinstance(error, CorruptValueError):
            # Another owner would get the same error.
            log.error("journal %s: the interval is given up: %s", self.journal, error)
            self.post(Deposed(str(error)))
        elif self.closed:
            return
        elif isinstance(error, CorruptValueError):
            log.error("journal %s: the interval stops: its stored data is damaged: %s", self.journal, error)
            self.damage = str(error)
            self._give_up(self.damage)
        elif isinstance(error, NotInstalledError):
            log.error("journal %s: the interval cannot run here: %s", self.journal, error)
            self.not_installed = str(error)
            self._give_up(self.not_installed)
        else:
            log.error("journal %s: the interval is given up after an internal error", self.journal, exc_info=error)
            self.fault = f"internal error: {error_message(error)}"
            self._give_up(self.fault)

    def _give_up(self, reason: str) -> None:
        self._shut()
        self._peers.lost(self, reason)

    # The end.

    async def prepare_release(self) -> ReleasePrepared | None:
        """Reduce what a successor must read, while work continues. Returns None if the interval is lost meanwhile."""
        self.handed_over_at = asyncio.get_running_loop().time()
        answer: ReleasePrepared | None = await self._ask(PrepareRelease)
        return answer

    async def hold(
        self, event: Callable[[asyncio.Future[SnapshotHoldAnswer]], SnapshotEvent]
    ) -> SnapshotHoldAnswer | None:
        """Let the core answer a snapshot. Returns None if the interval is lost meanwhile."""
        answer: SnapshotHoldAnswer | None = await self._ask(event)
        return answer

    async def _ask(self, event: Callable[[asyncio.Future[Any]], HostedEvent]) -> Any:
        if self.closed:
            return None
        request: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests.add(request)
        self.post(event(request))
        try:
            await asyncio.wait([request])
        finally:
            self._requests.discard(request)
        return None if request.cancelled() else request.result()

    async def close(self) -> None:
        """Stop driving the core. For the interval this is the same as the end of the process."""
        self._shut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, left = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        if left:
            # User code ignores its cancellation. Nothing that it still does is committed.
            log.error(
                "journal %s: %d hooks go on although they were cancelled; they are left alone", self.journal, len(left)
            )

    def _shut(self) -> None:
        """Process no more events. Senders receive NOT_OWNER, so they send again to the next owner."""
        self.closed = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for hook in self._unstarted.values():
            hook.close()
        self._unstarted.clear()
        for delivery in list(self._deliveries):
            refuse_not_owner(delivery)
        self._deliveries.clear()
        for request in self._requests:
            request.cancel()


def _log_hook(report: HookReport) -> None:
    log.warning("%s", report.message if isinstance(report, HookFailed) else report.batch)


def _no_subscribers(effect: SubscriberEffect) -> None:
    raise TypeError(f"{type(effect).__name__} is an effect of a stream log, and this host has no subscribers")
