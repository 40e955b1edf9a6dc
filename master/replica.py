"""A master replica: it competes in the election, leads while elected, and otherwise names the leader (section 7.1)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from typing import Final

from millwheel.coordination.contract import Coordinator, CoordinatorError
from millwheel.coordination.election import Election, Leadership
from millwheel.master.balancing import HotKey
from millwheel.master.event_recorder import EventRecorder
from millwheel.master.expected_injectors import Expectations
from millwheel.master.handover_hints import refuse_quarantined, reshape
from millwheel.master.load_book import LoadBook
from millwheel.master.loads import Loads, kind_of
from millwheel.master.messages import Answer, Intervals, Request, ReshapeRequest
from millwheel.master.observer import Observer
from millwheel.master.package_garbage import collect_packages
from millwheel.master.packages import Packages
from millwheel.master.presence import keep_present
from millwheel.master.settings import MasterSettings
from millwheel.master.term import Term
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import LEADERSHIP
from millwheel.model.stalls import ProcessConditions
from millwheel.model.time import Timestamp
from millwheel.rpc.clock import wall_now
from millwheel.rpc.failures import NOT_LEADING, FailureCode, RequestError
from millwheel.rpc.v1.topology_pb2 import CodeReference
from millwheel.store.contract import StateStore

__all__ = ["MasterReplica", "steady_clock"]

_PAUSE_AFTER_FAULT_SECONDS: Final = 1.0
_CLOSE_UNUSED_SECONDS: Final = 60.0
"""Seconds after which unused channels are closed; longer than any call."""
_log = logging.getLogger(__name__)


def steady_clock() -> Timestamp:
    """Return a time that never goes back, for measuring durations."""
    return Timestamp(int(asyncio.get_running_loop().time() * 1_000_000))


class MasterReplica:
    """One replica of the master. Any number may run. The elected one answers, and the others name it.

    It has many attributes: what it serves with, and what it has while it leads.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        store: StateStore,
        address: str,
        settings: MasterSettings | None = None,
        *,
        ttl: float,
        clock: Callable[[], Timestamp] = wall_now,
        console: str = "",
        conditions: ProcessConditions | None = None,
    ) -> None:
        """``address`` (host:port) is where this replica's services answer. ``console``: the URL of its web console.

        ``ttl``: seconds after a leader has vanished until another one leads. ``conditions``: what the process observes
        of its machine and of the store. None: nothing.
        """
        self.conditions = conditions or ProcessConditions()
        self.coordinator = coordinator
        self.observer = Observer()
        self.store = store
        self.address = address
        self._settings = settings or MasterSettings()
        self._clock = clock
        self._ttl = ttl
        self.console = console
        """The URL of its web console. Empty: it serves none."""
        self._election = Election(coordinator, LEADERSHIP, address, ttl)
        self._term: Term | None = None
        self._packages: Packages | None = None
        self._loads: Loads | None = None
        self._events: EventRecorder | None = None
        self._leading = asyncio.Event()
        self.admit_code: Callable[[CodeReference], None] = lambda code: None
        """Raises RequestError for code that no worker would load: it is not signed."""
        self.certificate_problems: Callable[[], Iterable[str]] = tuple
        """Returns what is wrong with the certificates of this process, for the health of the cluster."""
        kinds, requesters, outcomes = ("move", "split", "merge"), ("balancer", "operator"), ("done", "refused")
        self.operations = Counter(dict.fromkeys(product(kinds, requesters, outcomes), 0))
        """Changes of intervals since this replica started, by (kind, requester, outcome). All exist from the beginning:
        Prometheus does not see the first increase of a counter that begins with it."""

    async def run(self) -> None:
        """Compete in elections until cancelled."""
        registration = keep_present(
            self.coordinator, self.address, self._ttl, self._clock, self.console, self.conditions.longest_stall
        )
        present = asyncio.ensure_future(registration)
        sweeping = asyncio.ensure_future(self._sweep())
        try:
            while True:
                await self._lead(await self._election.campaign())
        finally:
            present.cancel()
            sweeping.cancel()
            await asyncio.gather(present, sweeping, return_exceptions=True)
            await self.observer.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_CLOSE_UNUSED_SECONDS)
            await self.observer.sweep()

    async def _lead(self, leadership: Leadership) -> None:
        read_progress, forget = self.observer.read_progress, self.observer.forget
        term = Term(leadership, self.coordinator, self.store, self._settings, read_progress, forget, self._clock)
        loads = Loads(term, self.observer, self._settings, partial(self._count, "balancer"), steady_clock)
        self._term, self._packages, self._loads = term, Packages(self.store, leadership.term), loads
        self._leading.set()
        _log.info("leading, term %d", leadership.term)
        events = self._events = EventRecorder(term, self.address, lambda: loads.book)
        works = (
            loads.run(),
            events.run(),
            Expectations(term, self.observer).run(),
            collect_packages(term, self._packages),
        )
        beside = [asyncio.ensure_future(work) for work in works]
        try:
            await term.run()
        except Exception:
            _log.exception("term %d ends by a fault; another election follows", leadership.term)
            await asyncio.sleep(_PAUSE_AFTER_FAULT_SECONDS)
        finally:
            self._leading.clear()
            self._term = self._packages = self._loads = self._events = None
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await leadership.resign()

    @property
    def leads(self) -> bool:
        """Whether this replica leads, as far as it knows."""
        return self._term is not None and not self._term.is_over

    async def leading(self) -> Term:
        """Wait until this replica leads and has read the catalog. For tests and for startup."""
        while True:
            await self._leading.wait()
            term = self._term
            if term is not None:
                await term.ready()
                if not term.is_over:
                    return term
            await asyncio.sleep(0.01)

    async def term(self) -> Term:
        """Return the present term once its catalog is read; RequestError (UNAVAILABLE) names another leader."""
        term = self._term
        if term is not None:
            await term.ready()
            if not term.is_over:
                return term
        raise await self._not_leading()

    async def packages(self) -> Packages:
        """Return the code packages; RequestError (UNAVAILABLE) if this replica does not lead."""
        await self.term()
        if self._packages is None:
            raise await self._not_leading()
        return self._packages

    @property
    def catalog(self) -> Catalog | None:
        """The coordinator's contents; None if this replica does not lead."""
        return self._term.catalog if self._term is not None else None

    @property
    def book(self) -> LoadBook:
        """The workers' load reports of this term; empty if this replica does not lead."""
        return self._loads.book if self._loads is not None else LoadBook()

    @property
    def left_workers(self) -> Mapping[str, str]:
        """The workers that were stopped in order and are not back, each with its address; empty if this replica does
        not lead."""
        return self._events.left if self._events is not None else {}

    @property
    def hot_keys(self) -> tuple[HotKey, ...]:
        """The keys too hot to split, the hottest first; empty if this replica does not lead."""
        return self._loads.hot_keys if self._loads is not None else ()

    async def reshape(self, request: ReshapeRequest) -> Intervals:
        """Carry out an operator's move, split or merge, after notifying the owners."""
        term = await self.term()
        try:
            refuse_quarantined(term.catalog, request, self.book)
            made = await reshape(term, self.observer, request)
        except RequestError:
            self._count("operator", kind_of(request), "refused")
            raise
        self._count("operator", kind_of(request), "done")
        return made

    def _count(self, by: str, kind: str, outcome: str) -> None:
        self.operations[kind, by, outcome] += 1

    async def ask(self, request: Request) -> Answer:
        """Pass a request to the core, and return once its decision is durable."""
        return await (await self.term()).ask(request)

    async def _not_leading(self) -> RequestError:
        try:
            leader = await self._election.leader() or ""
        except CoordinatorError as error:
            return RequestError(
                FailureCode.UNAVAILABLE,
                f"the coordinator cannot be reached ({error})",
                "see that it runs; data keeps flowing for as long as workers' leases last",
                reason="COORDINATOR_UNAVAILABLE",
            )
        # Between two terms the key may still name this replica: it has just won, or has not resigned yet.
        leader = "" if leader == self.address else leader
        text = f"the master at {leader} leads, this one stands by" if leader else "no master leads just now"
        remedy = f"ask {leader}" if leader else "an election takes a few seconds: try again"
        return RequestError(FailureCode.UNAVAILABLE, text, remedy, reason=NOT_LEADING, leader=leader)
