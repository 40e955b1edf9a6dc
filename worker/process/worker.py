"""A worker process: it runs the intervals that the catalog assigns to it, and processes their records (section 7.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
from prometheus_client.registry import Collector

from millwheel.coordination.contract import Coordinator
from millwheel.model.catalog import Catalog, codes_of
from millwheel.model.stalls import ProcessConditions
from millwheel.model.traces import SpanSource
from millwheel.rpc.v1.topology_pb2 import CodeReference
from millwheel.store.contract import StateStore
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.process.appends import after_sync_of
from millwheel.worker.process.building import Builder
from millwheel.worker.process.connector_metrics import ConnectorCollector
from millwheel.worker.process.destinations import CatalogRouting, DeliverySender
from millwheel.worker.process.follower import CatalogFollower
from millwheel.worker.process.hook_reports import HookReports
from millwheel.worker.process.host_peers import WorkerPeers
from millwheel.worker.process.hosts import Hosts
from millwheel.worker.process.key_failures import KeyFailures
from millwheel.worker.process.links import WorkerLinks
from millwheel.worker.process.measure_metrics import MeasureCollector
from millwheel.worker.process.metrics import WorkerCollector
from millwheel.worker.process.notices import HostNotices
from millwheel.worker.process.ownership import Ownership
from millwheel.worker.process.programs import Programs
from millwheel.worker.process.registration import Assignments, Registration
from millwheel.worker.process.run_queue import RunQueue
from millwheel.worker.process.services import WorkerServices
from millwheel.worker.process.tallies import Tallies
from millwheel.worker.process.tasks import BackgroundTasks
from millwheel.worker.process.watermarks import ConnectAuthority

__all__ = ["Worker", "WorkerSettings"]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """One worker's own settings. ``lease`` is in seconds."""

    worker_id: str
    address: str
    packages: Path
    lease: float
    core: IntervalSettings = field(default_factory=IntervalSettings)
    hand_over: float = 0.0
    """Seconds for preparing intervals for their next owners when this worker ends. 0: they are not prepared."""
    check_values: bool = True
    """Whether a hook fails if it creates a state or a production that could not be read again as its declared type."""
    admit_code: Callable[[CodeReference], None] = lambda code: None
    """Raises an error for code that must not be loaded here: it is not signed."""
    slow_hook: float = 0.0
    """Seconds from which on a hook counts as blocking the event loop, and is logged. 0: never."""


class Worker:
    """The parts of the worker role. ``start`` registers the worker. The catalog then assigns its intervals."""

    def __init__(
        self,
        settings: WorkerSettings,
        store: StateStore,
        coordinator: Coordinator,
        connect_authority: ConnectAuthority,
        fetch_package: Callable[[str], Awaitable[bytes]],
        spans: SpanSource | None = None,
        conditions: ProcessConditions | None = None,
    ) -> None:
        """
        Args:
            settings: This worker's own settings.
            store: The store.
            coordinator: The coordinator.
            connect_authority: Connects to the authority's shards.
            fetch_package: Downloads a code package by its digest.
            spans: Starts spans of sampled records. None: there are none.
            conditions: What the process observes of its machine and of the store. None: nothing.
        """
        self._settings = settings
        self._background = background = BackgroundTasks()
        self.catalog = catalog = Catalog()
        self.tallies = Tallies()
        self.key_failures = KeyFailures()
        self.follower = CatalogFollower(coordinator, catalog, self._reconcile, background)
        self.programs = Programs(
            settings.packages,
            fetch_package,
            self.follower.catch_up_soon,
            verify=settings.check_values,
            admit=settings.admit_code,
        )
        routing = CatalogRouting(catalog, self.programs.extractor)
        queue = RunQueue(asyncio.get_running_loop())
        builder = Builder(
            catalog, self.programs, routing, settings.core, self.tallies.measures_of, queue.batch_time,
            settings.slow_hook, spans,
        )  # fmt: skip
        self.hosts = hosts = Hosts(catalog, store, connect_authority, routing, builder, queue, self.tallies)
        self.hooks = HookReports(settings.slow_hook, hosts.place_of_scope)
        after_sync = after_sync_of(store)
        self._sending = DeliverySender(coordinator, catalog, hosts.hosted, settings.address, background.run, after_sync)
        links = WorkerLinks(catalog, self._sending.peers, hosts.repeating, conditions or ProcessConditions())
        peers = partial(WorkerPeers, self._sending, hosts.authority, coordinator, catalog)
        self.ownership = Ownership(hosts, catalog, self.programs, self.hooks, background, self._renew, peers)
        self.notices = HostNotices(hosts, catalog, coordinator, hosts.authority, background)
        self._registration = Registration(
            coordinator,
            settings.worker_id,
            settings.address,
            settings.lease,
            self.ownership.drop_all,
            self.hooks.slowest_since,
        )
        self._assignments = Assignments(catalog, self._registration, settings.worker_id)
        self._services = WorkerServices(
            catalog, self.programs, hosts, store, self.tallies, self.hooks, self.key_failures, self._absence,
            self.notices.knows, lambda: self.ownership.quarantined, self.ownership.absent,
            links,
        )  # fmt: skip

    def add_services(self, server: grpc.aio.Server) -> None:
        """Serve deliveries, subscriptions and inspection on ``server``."""
        self._services.add_to(server)

    def collectors(self) -> Iterator[Collector]:
        """Its metrics for Prometheus."""
        yield WorkerCollector(
            self.tallies, self.ownership.quarantined_places, self.hooks.running, self.key_failures.totals
        )
        yield self.hosts.quotas
        yield MeasureCollector(self.tallies, self.hosts.log_cores, repeating=lambda: len(self.hosts.repeating()))
        yield ConnectorCollector(self.tallies)
        yield self._services.links

    async def start(self) -> None:
        """Register, and follow the catalog."""
        await self._registration.start()
        self.hooks.start()
        self.follower.start()

    async def close(self) -> None:
        """Release everything: intervals, connections, the registration.

        For up to ``hand_over`` seconds, first reduce what the next owners of the intervals have to read.
        """
        await self.ownership.prepare_releases(self._settings.hand_over)
        self.hooks.close()
        self.programs.close()
        self.follower.close()
        await self._background.close()
        await self.notices.watch.close()
        await self.ownership.drop_all()
        await self._sending.close()
        await self._registration.close()
        await self.hosts.authority.close()

    def _renew(self) -> None:
        self._registration.renew_from_scratch()

    async def _reconcile(self) -> bool:
        """Run exactly the intervals that the catalog assigns to this worker, and route by its consumers.

        Returns:
            False if code is missing, or an interval cannot be built. Such intervals do not run yet.
        """
        # Load code before any interval is released. So an interval that changes to new code does not wait for it.
        loaded = await self.programs.load_all(record.spec for _, record in self.catalog.live_topologies())
        self._assignments.check_worker_id()
        owned = self._assignments.owned()
        stopping = self.ownership.release(owned)
        # Each interval is released at the first step of its stopping. Slow hooks of these intervals delay nothing.
        await asyncio.sleep(0)
        self.hosts.routing.refresh()
        self._sending.refresh()
        started, built = self.ownership.start(owned)
        for hosted in started:
            self.notices.started(hosted)
        self.notices.notify()
        self.hosts.follow_quotas()
        places = {self.hosts.place_of(incarnation) for incarnation in self.catalog.maps}
        self.tallies.keep(places)
        self.hooks.log.keep(places)
        self.key_failures.keep(places)
        await self._sending.close_unused()
        await asyncio.gather(*stopping)
        self._forget_code()
        return loaded and built

    def _forget_code(self) -> None:
        """Unload code that no live topology names and no interval here runs."""
        live = dict(self.catalog.live_topologies())
        named = [code for record in live.values() for code in codes_of(record.spec)]
        running = [one.built.code for one in self.hosts.hosted.values() if one.built.code is not None]
        self.programs.keep([*named, *running], live)

    def _absence(self, journal: str) -> str:
        """Why an interval assigned to this worker does not run here. Empty if it is not assigned to this worker."""
        assigned = (one for one in self._assignments.owned() if one.interval.journal == journal)
        return next((self.ownership.absence(one) for one in assigned), "")
