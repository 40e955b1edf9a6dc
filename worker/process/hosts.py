"""The intervals that this process runs: each one's core, its host and what must be released with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from millwheel.model.catalog import Catalog, OwnedInterval
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import KeyInterval
from millwheel.model.stream_names import owner_of
from millwheel.rpc.watermarks import Member, PendingWork
from millwheel.sdk.scope import Scope
from millwheel.store.contract import StateStore
from millwheel.store.repetition import RetriedCalls
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.pending import pending_work
from millwheel.worker.log import LogCore
from millwheel.worker.messages import Deposed
from millwheel.worker.process.building import Builder, Built
from millwheel.worker.process.destinations import CatalogRouting, HostChannel
from millwheel.worker.process.hook_reports import HookReports
from millwheel.worker.process.host import CoreHost, HostPeers
from millwheel.worker.process.load import Metered
from millwheel.worker.process.log_service import LogService
from millwheel.worker.process.opening import ReadAhead
from millwheel.worker.process.quotas import RecordQuotas, weight_of
from millwheel.worker.process.run_queue import RunQueue
from millwheel.worker.process.tallies import ComputationName, Tallies
from millwheel.worker.process.traced_core import with_traces
from millwheel.worker.process.watermarks import ConnectAuthority

__all__ = ["Hosted", "Hosts", "Quarantined"]

log = logging.getLogger("millwheel.worker")


@dataclass(slots=True)
class Hosted:
    """An interval that this process runs."""

    host: CoreHost
    owned: OwnedInterval
    built: Built
    channel: HostChannel
    topology: str = ""
    """The topology that it works for: a stream's log works for the one that the stream belongs to."""
    groups: frozenset[str] = frozenset()
    """Those whose broadcast watermarks it receives: of its inputs, and of others whose ids it has."""
    known_senders: dict[str, int] = field(default_factory=dict)
    """By sender: the sequencer for which the host has received a catalog that is new enough. Each notice clears it."""

    @property
    def sequencer(self) -> int:
        """The sequencer that it was opened under."""
        return self.owned.interval.sequencer

    def opaque_groups(self) -> frozenset[str]:
        """The groups of which it may have opaque ids."""
        return frozenset(self.built.core.state.dedup.opaque_groups)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """An interval that is stopped because a stored value that it needs is missing or damaged: ``why``."""

    incarnation: IncarnationId
    topology: str
    computation: str
    why: str


class Hosts:
    """Starts, finds and ends hosts. Which intervals have one is decided by ``Ownership``."""

    def __init__(
        self,
        catalog: Catalog,
        store: StateStore,
        connect: ConnectAuthority,
        routing: CatalogRouting,
        builder: Builder,
        queue: RunQueue,
        tallies: Tallies,
    ) -> None:
        self.hosted: dict[str, Hosted] = {}
        """By journal."""
        self.logs = LogService(self.find_log)
        self.ahead: ReadAhead = {}
        self.builder = builder
        self.queue = queue
        self.routing = routing
        self._catalog = catalog
        self.store = store
        self._tallies = tallies
        self.quotas = RecordQuotas(catalog)
        self.authority = connect(self._report_refused, self._pending_of)

    # Start and end.

    def start(self, owned: OwnedInterval, peers: HostPeers, hooks: HookReports) -> Hosted | None:
        """Run an interval. Returns None while its code is not loaded, or if the catalog does not have it any more."""
        built = self.builder.build(owned)
        if built is None:
            return None
        interval = owned.interval
        place = self.place_of(owned.incarnation)
        topology = owner_of(built.log_of) if built.log_of else place[0]
        share = self.queue.share(topology, weight_of(self._catalog, topology))
        host = CoreHost(
            interval.journal, with_traces(built.core, built.traces), self.store, peers, share,
            partial(hooks.take, place), self.logs.perform if built.log_of else None, self.ahead, built.clock,
            partial(self._tallies.refused.add, place),
        )  # fmt: skip
        hosted = self.hosted[interval.journal] = Hosted(host, owned, built, HostChannel(host), topology)
        if isinstance(built.core, IntervalCore):
            self._tallies.enter(interval.journal, place, built.core)
        log.info("interval %s: opening with sequencer %d", interval.journal, interval.sequencer)
        host.start()
        return hosted

    def follow_quotas(self) -> None:
        """The catalog has changed: the topologies get what their quotas say."""
        self.quotas.refresh()
        for topology in {one.topology for one in self.hosted.values()}:
            self.queue.share(topology, weight_of(self._catalog, topology))

    async def stop(self, journal: str) -> None:
        """Release an interval. No effect if it was lost meanwhile."""
        hosted = self.remove(journal)
        if hosted is not None:
            log.info("interval %s: released, sequencer %d", journal, hosted.sequencer)
            await hosted.host.close()

    def remove(self, journal: str) -> Hosted | None:
        """Remove everything that must be gone before a successor is opened here. The caller closes the host."""
        hosted = self.hosted.pop(journal, None)
        if hosted is not None:
            self.routing.release(hosted.built.bindings)
            self.authority.forget(hosted.owned.incarnation, hosted.built.core.keys)
            self._tallies.leave(hosted.host.journal)
            if hosted.built.traces is not None:
                hosted.built.traces.close("owner lost")
            if hosted.built.log_of:
                self.logs.dropped(hosted.built.log_of)
        return hosted

    # Finding.

    def find_owned(self, journal: str, sequencer: int) -> CoreHost | None:
        """The host of a journal under a sequencer."""
        hosted = self.hosted.get(journal)
        return hosted.host if hosted is not None and hosted.sequencer == sequencer else None

    def find_log(self, stream: str, incarnation: IncarnationId) -> CoreHost | None:
        """The host of a stream's log: of the one with ``incarnation``, or of any if that is empty.

        If a stream was created again, this process may still have the former log until the catalog change arrives.
        """
        # An interval that is no log has an empty stream, and a request may also have one.
        found = (hosted for hosted in self.hosted.values() if stream and hosted.built.log_of == stream)
        return next((one.host for one in found if incarnation in ("", one.owned.incarnation)), None)

    def log_cores(self) -> list[LogCore]:
        """The cores of the logs that run here. Any thread may ask."""
        return [one.built.core for one in list(self.hosted.values()) if isinstance(one.built.core, LogCore)]

    def repeating(self) -> list[RetriedCalls]:
        """The calls of each interval and log that waits for one that has failed and is repeated. Any thread may ask."""
        return [calls for one in list(self.hosted.values()) if (calls := one.host.retried).repeated]

    def core_of(self, journal: str) -> IntervalCore | None:
        """The interval core of ``journal``, if this process runs it."""
        hosted = self.hosted.get(journal)
        core = None if hosted is None else hosted.built.core
        return core if isinstance(core, IntervalCore) else None

    def metered(self) -> Iterator[Metered]:
        """The work of each interval."""
        for journal, one in self.hosted.items():
            yield Metered(one.owned.incarnation, journal, one.sequencer, one.built.core, one.host.busy)

    def place_of(self, incarnation: IncarnationId) -> ComputationName:
        """The topology and the computation of an incarnation. Empty names if the catalog does not have it."""
        interval_map = self._catalog.maps.get(incarnation)
        computation, topology = interval_map.origin if interval_map is not None else ("", "")
        return topology, computation

    def place_of_scope(self, scope: Scope) -> ComputationName | None:
        """The computation whose hook runs in ``scope``. The watchdog's thread calls this, so the hosts are copied."""
        for hosted in list(self.hosted.values()):
            core = hosted.built.core
            if isinstance(core, IntervalCore) and core.state.scope is scope:
                return self.place_of(hosted.owned.incarnation)
        return None

    # Requests of the authority.

    def _report_refused(self, group: str, keys: KeyInterval, sequencer: int) -> None:
        for hosted in list(self.hosted.values()):
            same = hosted.owned.incarnation == group and hosted.built.core.keys == keys
            if same and hosted.sequencer == sequencer:
                hosted.host.post(Deposed("the authority refused a report: a larger sequencer holds the keys"))

    def _pending_of(self, group: str) -> dict[Member, PendingWork]:
        mine = [one.built.core for one in self.hosted.values() if one.owned.incarnation == group]
        return {core.keys: pending_work(core.state) for core in mine if isinstance(core, IntervalCore)}
