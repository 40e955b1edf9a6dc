"""A worker process: it runs the intervals that the catalog assigns to it, and processes their records (section 7.1)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import grpc

from millwheel.client.watermark_streams import PendingOf
from millwheel.coordination.contract import Coordinator, CoordinatorError, DamagedValueError
from millwheel.model.backoff import Backoff, jittered
from millwheel.model.catalog import Catalog, Consumer, OwnedInterval, code_of, codes_of
from millwheel.model.keys import KeyInterval
from millwheel.rpc.clock import wall_now
from millwheel.rpc.v1 import catalog_pb2, common_pb2, topology_pb2
from millwheel.rpc.v1.delivery_pb2_grpc import add_DeliveryServiceServicer_to_server
from millwheel.rpc.v1.handover_pb2_grpc import add_HandoverServiceServicer_to_server
from millwheel.rpc.v1.inspection_pb2_grpc import add_InspectionServiceServicer_to_server
from millwheel.rpc.v1.subscription_pb2_grpc import add_SubscriptionServiceServicer_to_server
from millwheel.rpc.watermarks import Member, PendingWork
from millwheel.sdk.context import Scope
from millwheel.sdk.error_texts import error_message
from millwheel.store.contract import StateStore
from millwheel.worker.interval import IntervalCore, IntervalSettings
from millwheel.worker.interval.pending import pending_work
from millwheel.worker.messages import (
    AcceptSequencer,
    CatalogChanged,
    Deposed,
    Report,
    SendDelivery,
    SenderWatermarks,
    SequenceChecked,
)
from millwheel.worker.shell.building import Builder
from millwheel.worker.shell.channels import LocalChannel
from millwheel.worker.shell.delivery_service import DeliveryService
from millwheel.worker.shell.follower import follow
from millwheel.worker.shell.handover import HandoverService
from millwheel.worker.shell.hook_reports import HookReports
from millwheel.worker.shell.host import CoreHost
from millwheel.worker.shell.hosted import Hosted, Quarantined
from millwheel.worker.shell.inspection import InspectionService
from millwheel.worker.shell.internal_errors import RESTART_BACKOFF, InternalErrors
from millwheel.worker.shell.key_failures import KeyFailures
from millwheel.worker.shell.lineage import dead_journals, journal_lives
from millwheel.worker.shell.load import LoadMeter, Metered
from millwheel.worker.shell.log_service import LogService
from millwheel.worker.shell.opening import ReadAhead
from millwheel.worker.shell.preparing import RecordPreparer
from millwheel.worker.shell.programs import Programs
from millwheel.worker.shell.registration import Registration, WorkerIdTakenError
from millwheel.worker.shell.routing import CatalogRouting
from millwheel.worker.shell.runloop import RunQueue
from millwheel.worker.shell.sending import DeliverySender
from millwheel.worker.shell.tallies import Place, Tallies
from millwheel.worker.shell.watching import SenderWatch, Watermarks

__all__ = ["Authority", "Worker", "WorkerSettings"]

log = logging.getLogger("millwheel.worker")

_CATALOG_BACKOFF: Final = Backoff(0.25, 30.0)
"""Seconds until the catalog is processed again after a step has failed."""

_SETTLED_AFTER_SECONDS: Final = 90.0
"""Maximum seconds after the opening of an interval until its state of journals retired meanwhile is dropped."""


class Authority(Protocol):
    """The low watermark authority's interface for a worker (7.2)."""

    on_refused: Callable[[str, KeyInterval, int], None]
    """Called with a computation, keys and a sequencer whose report was refused (G4)."""
    pending_of: PendingOf
    """Called with a computation when the authority requests the pending work of its intervals here (7.2)."""

    def forget(self, computation: str, keys: KeyInterval) -> None:
        """Report nothing more for an interval."""

    async def accept(self, computation: str, keys: KeyInterval, sequencer: int) -> int:
        """Let the authority accept a sequencer.

        Returns:
            The watermark last broadcast for the keys, in microseconds.

        Raises:
            SequencerRefusedError: A larger sequencer is known.
        """

    def report(self, report: Report) -> None:
        """Report an interval's watermark. Only the newest report of an interval counts."""

    def watch(self, computations: Iterable[str]) -> AsyncIterator[Watermarks]:
        """Broadcast values: first all of them, then changes."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """One worker's own settings. ``lease`` is in seconds."""

    worker_id: str
    address: str
    packages: Path
    lease: float = 5.0
    core: IntervalSettings = field(default_factory=IntervalSettings)
    hand_over: float = 0.0
    """Seconds for preparing intervals for their next owners when this worker ends. 0: they are not prepared."""
    check_values: bool = True
    """Whether a hook fails if it creates a state or a production that could not be read again as its declared type."""
    slow_hook: float = 0.0
    """Seconds from which on a hook counts as blocking the event loop, and is logged. 0: never."""


class Worker:
    """The driver of the worker role. ``start`` registers the worker. The catalog then assigns its intervals."""

    def __init__(
        self,
        settings: WorkerSettings,
        store: StateStore,
        coordinator: Coordinator,
        authority: Authority,
        fetch_package: Callable[[str], Awaitable[bytes]],
    ) -> None:
        self.settings = settings
        self.catalog = Catalog()
        self.store = store
        self.coordinator = coordinator
        self.authority = authority
        authority.on_refused = self._report_refused
        authority.pending_of = self._pending_of
        self.programs = Programs(settings.packages, fetch_package, verify=settings.check_values)
        self.programs.on_loaded = lambda: self._background(self._catch_up())
        self.routing = CatalogRouting(self.catalog, self.programs.extractor)
        self._builder = Builder(self.catalog, self.programs, self.routing, settings.core, settings.slow_hook)
        self.logs = LogService(self._find_log)
        self.queue = RunQueue(asyncio.get_running_loop())
        self.hosted: dict[str, Hosted] = {}
        self._sending = DeliverySender(coordinator, self.catalog, self.hosted, settings.address, self._background)
        self.tallies = Tallies()
        self.hooks = HookReports(settings.slow_hook, self._place_of_scope)
        self.key_failures = KeyFailures()
        self._watch = SenderWatch(authority.watch, self._tell)
        self._following: asyncio.Task[None] | None = None
        self._reconciling = asyncio.Lock()
        self._again: asyncio.TimerHandle | None = None
        self._failures = 0
        """Attempts in succession to follow the catalog that left something out."""
        self._given_up: dict[tuple[str, int], str] = {}
        """The reason, by journal and sequencer. Under that sequencer the interval is not opened again."""
        self.quarantined: dict[tuple[str, int], Quarantined] = {}
        """The intervals among those given up that have a damaged stored value, by journal and sequencer."""
        self._unbuilt: dict[str, str] = {}
        """Why an interval cannot be run, by journal."""
        self._errors = InternalErrors()
        self._ahead: ReadAhead = {}
        self._reported_retired: frozenset[str] = frozenset()
        self._computations: frozenset[str] = frozenset()
        """The incarnations in the catalog when the hosts last received it."""
        self._known_consumers: frozenset[str] = frozenset()
        self._tasks: set[asyncio.Task[None]] = set()
        self._displaced = ""
        """The address of another process with the same worker id, at the last check."""
        self._registration = Registration(
            coordinator,
            settings.worker_id,
            settings.address,
            settings.lease,
            self._drop_all,
            self.hooks.slowest_since,
        )

    # Start, services and end.

    def add_services(self, server: grpc.aio.Server) -> None:
        """Serve deliveries, subscriptions and inspection on ``server``."""
        preparer = RecordPreparer(self.catalog, self.programs, self._key_failed, self.key_failures.got_keys)
        add_DeliveryServiceServicer_to_server(DeliveryService(self.find, preparer.prepare), server)
        add_SubscriptionServiceServicer_to_server(self.logs, server)
        load = LoadMeter(
            self._metered,
            damaged=lambda: self.quarantined,
            hooks=self.tallies.hooks,
            key_functions=lambda: self.key_failures.shown(self.catalog.consumers, wall_now()),
        ).load
        inspection = InspectionService(self._journal_of_key, self.core_of, self._absence, self.store, load)
        add_InspectionServiceServicer_to_server(inspection, server)
        handover = HandoverService(self._find_owned, self.store, self._ahead, self._load_code)
        add_HandoverServiceServicer_to_server(handover, server)

    async def start(self) -> None:
        """Register, and follow the catalog."""
        await self._registration.start()
        self.hooks.start()
        self._following = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Release everything: intervals, connections, the registration.

        For up to ``hand_over`` seconds, first reduce what the next owners of the intervals have to read.
        """
        await self._prepare_releases()
        self.hooks.close()
        self.programs.close()
        if self._again is not None:
            self._again.cancel()
        for task in (self._following, *self._tasks):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._watch.close()
        await self._drop_all()
        await self._sending.close()
        await self._registration.close()

    def _key_failed(
        self, consumer: Consumer, stream: str, error: BaseException, waiting: common_pb2.WaitingRecords | None
    ) -> None:
        failure = self.key_failures.failed(consumer, stream, error, waiting, wall_now())
        self.hooks.failed((consumer.topology, consumer.computation), failure)

    def find(self, journal: str) -> CoreHost | None:
        """The host of an interval that this process runs."""
        hosted = self.hosted.get(journal)
        return None if hosted is None else hosted.host

    def _find_owned(self, journal: str, sequencer: int) -> CoreHost | None:
        hosted = self.hosted.get(journal)
        return hosted.host if hosted is not None and hosted.sequencer == sequencer else None

    def _metered(self) -> Iterator[Metered]:
        for journal, one in self.hosted.items():
            yield Metered(one.owned.incarnation, journal, one.sequencer, one.built.core, one.host.busy)

    async def _load_code(self, incarnation: str) -> None:
        """Load the code of a computation that this process will run soon."""
        found = self.catalog.computation(incarnation)
        if found is not None:
            await self.programs.load(code_of(*_specs(found)))

    def _find_log(self, stream: str, incarnation: str) -> CoreHost | None:
        """The host of a stream's log: of the one with ``incarnation``, or of any if that is empty.

        If a stream was created again, this process may still have the former log until the catalog change arrives.
        """
        # An interval that is no log has an empty stream, and a request may also have one.
        found = (hosted for hosted in self.hosted.values() if stream and hosted.built.log_of == stream)
        return next((one.host for one in found if incarnation in ("", one.owned.incarnation)), None)

    def core_of(self, journal: str) -> IntervalCore | None:
        """The interval core of ``journal``, if this process runs it."""
        hosted = self.hosted.get(journal)
        core = None if hosted is None else hosted.built.core
        return core if isinstance(core, IntervalCore) else None

    def _journal_of_key(self, incarnation: str, key: bytes) -> str:
        interval = self.catalog.locate(incarnation, key)
        return "" if interval is None else interval.journal

    def _absence(self, journal: str) -> str:
        """Why an interval assigned to this worker does not run here. Empty if it is not assigned to this worker."""
        for one in self._owned():
            if one.interval.journal == journal:
                found = self.catalog.computation(one.incarnation)
                failure = self.programs.failure(code_of(*_specs(found))) if found is not None else ""
                failure = failure or self._unbuilt.get(journal, "")
                return failure or self._given_up.get((journal, one.interval.sequencer), "it is being opened")
        return ""

    def quarantined_places(self) -> list[Place]:
        """The topology and computation of each quarantined interval, for metrics."""
        return [(one.topology, one.computation) for one in list(self.quarantined.values())]

    async def _prepare_releases(self) -> None:
        hosts = [one.host for one in self.hosted.values() if not one.built.log_of]
        if not hosts or self.settings.hand_over <= 0:
            return
        log.info("%d intervals are made ready for other workers", len(hosts))
        tasks = [asyncio.ensure_future(host.prepare_release()) for host in hosts]
        _, late = await asyncio.wait(tasks, timeout=self.settings.hand_over)
        for task in late:
            task.cancel()
        if late:
            log.warning("%d intervals were not ready in time; their next owners have more to read", len(late))

    async def _drop_all(self) -> None:
        # The catalog may still assign them to this worker. Invariant: a sequencer opens a journal only once.
        self._given_up.update(((journal, one.sequencer), "it was given up") for journal, one in self.hosted.items())
        # Stop all at once. Otherwise slow hooks of one interval would let the others continue to serve.
        await asyncio.gather(*(self._stop(journal) for journal in list(self.hosted)))

    # Following the catalog.

    async def _follow(self) -> None:
        async with aclosing(follow(self.coordinator, self.catalog)) as changes:  # type: ignore[type-var]
            async for _ in changes:
                await self._catch_up()

    async def _catch_up(self) -> None:
        """Process the catalog. If a step fails, repeat it after a delay, or at the next change."""
        async with self._reconciling:
            try:
                done = await self._reconcile()
            except DamagedValueError as error:
                log.error("what runs here goes on as it is, and nothing else is begun: %s", error)
                done = False
            except Exception:
                log.exception("the catalog could not be followed; trying again")
                done = False
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if done:
            self._failures = 0
            return
        self._failures += 1
        delay = _CATALOG_BACKOFF.delay(self._failures, random.random())
        self._again = asyncio.get_running_loop().call_later(delay, lambda: self._background(self._catch_up()))

    async def _reconcile(self) -> bool:
        """Run exactly the intervals that the catalog assigns to this worker, and route by its consumers.

        Returns:
            False if code is missing, or an interval cannot be built. Such intervals do not run yet.
        """
        # Load code before any interval is released. So an interval that changes to new code does not wait for it.
        complete = await self._load_code_of_all()
        self._stop_on_duplicate_id()
        owned = {one.interval.journal: one for one in self._owned()}
        gone = [
            journal
            for journal, hosted in self.hosted.items()
            if journal not in owned
            or (owned[journal].interval.sequencer != hosted.sequencer and not self._awaits_code(owned[journal]))
        ]
        stopping = [asyncio.ensure_future(self._stop(journal)) for journal in gone]
        # Each interval is released at the first step of ``_stop``. Slow hooks of these intervals delay nothing.
        await asyncio.sleep(0)
        self.routing.refresh()
        self._sending.refresh()
        self._given_up = {
            (journal, sequencer): why
            for (journal, sequencer), why in self._given_up.items()
            if journal in owned and owned[journal].interval.sequencer == sequencer
        }
        self.quarantined = {place: one for place, one in self.quarantined.items() if place in self._given_up}
        self._unbuilt = {journal: why for journal, why in self._unbuilt.items() if journal in owned}
        for journal, one in owned.items():
            if journal not in self.hosted and (journal, one.interval.sequencer) not in self._given_up:
                complete = self._try_start(one) and complete
        self._notify_hosts()
        for hosted in self.hosted.values():
            hosted.channel.resend_now()
        self._watch.follow(
            frozenset().union(*(self._builder.senders(hosted.built.inputs) for hosted in self.hosted.values())),
            self.catalog.injector_lives(),
        )
        places = {self._place_of(incarnation) for incarnation in self.catalog.tables}
        self.tallies.keep(places)
        self.hooks.log.keep(places)
        self.key_failures.keep(places)
        await self._sending.close_connection()
        await asyncio.gather(*stopping)
        self._forget_code()
        return complete

    def _owned(self) -> list[OwnedInterval]:
        """Intervals assigned to exactly this process, not to another one with the same worker id.

        Two processes must not open an interval under one sequencer. Neither could decide whose append of unknown
        outcome was applied (G3).
        """
        worker_id = self.settings.worker_id
        return [] if self._duplicate_id() else self.catalog.owned_by(worker_id, self.catalog.registration(worker_id))

    def _duplicate_id(self) -> str:
        """The address of another process that is registered under this worker id. Empty if there is none."""
        record = self.catalog.workers.get(self.settings.worker_id)
        return "" if record is None or self._registration.is_own(record) else record.endpoint.address

    def _stop_on_duplicate_id(self) -> None:
        """Log the duplicate worker id. Register again when the other process has ended."""
        before, self._displaced = self._displaced, self._duplicate_id()
        if self._displaced and self._displaced != before:
            error = WorkerIdTakenError(self.settings.worker_id, self._displaced)
            log.error("this worker owns nothing from now on: %s", error)
        elif before and self.settings.worker_id not in self.catalog.workers:
            self._registration.renew_from_scratch()

    async def _load_code_of_all(self) -> bool:
        return await self.programs.load_all(record.spec for _, record in self.catalog.live_topologies())

    def _awaits_code(self, owned: OwnedInterval) -> bool:
        """Whether the code that the interval will run next is still being loaded. Until then the old code continues."""
        found = self.catalog.computation(owned.incarnation)
        return found is not None and self.programs.is_loading(code_of(*_specs(found)))

    def _forget_code(self) -> None:
        """Unload code that no live topology names and no interval here runs."""
        live = [record.spec for _, record in self.catalog.live_topologies()]
        named = [code for spec in live for code in codes_of(spec)]
        self.programs.keep([*named, *(one.built.code for one in self.hosted.values() if one.built.code is not None)])

    def _try_start(self, owned: OwnedInterval) -> bool:
        """Run an interval. Returns False and logs the reason if it cannot be built. Other intervals are not delayed."""
        journal = owned.interval.journal
        try:
            self._start(owned)
        except Exception as error:
            why = f"it cannot be built: {error_message(error)}"
            if self._unbuilt.get(journal) != why:
                log.exception("interval %s: %s", journal, why)
            self._unbuilt[journal] = why
            return False
        self._unbuilt.pop(journal, None)
        return True

    def _start(self, owned: OwnedInterval) -> None:
        built = self._builder.build(owned)
        if built is None:
            return
        interval = owned.interval
        place = self._place_of(owned.incarnation)
        host = CoreHost(
            interval.journal, built.core, self.store, self, self.queue, partial(self.hooks.take, place),
            self.logs.perform if built.log_of else None, self._ahead, built.clock,
        )  # fmt: skip
        hosted = self.hosted[interval.journal] = Hosted(host, owned, built, LocalChannel(host))
        if isinstance(built.core, IntervalCore):
            self.tallies.enter(interval.journal, place, built.core)
        self._forget_dead_later(hosted)
        log.info("interval %s: opening with sequencer %d", interval.journal, interval.sequencer)
        host.start()
        host.post(self._watch.known())

    def _forget_dead_later(self, *hosted: Hosted) -> None:
        for one in hosted:
            delay = jittered(_SETTLED_AFTER_SECONDS, random.random())
            # Pass the names, not ``one``: the timer would keep a released interval in memory.
            place = (one.host.journal, one.sequencer)
            asyncio.get_running_loop().call_later(delay, self._forget_dead_now, *place)

    def _forget_dead_now(self, journal: str, sequencer: int) -> None:
        hosted = self.hosted.get(journal)
        if hosted is not None and hosted.sequencer == sequencer:
            self._background(self._forget_dead(hosted))

    async def _forget_dead(self, hosted: Hosted) -> None:
        """Drop an interval's duplicate-check state for senders' journals that no longer exist.

        Intervals are notified when parents are retired. But a notification is lost if the previous owner received it
        without a commit, or if it arrives during opening. The removal of computations is not notified at all.
        """
        try:
            dead = await dead_journals(self.coordinator, self.catalog, hosted.built.core.state.dedup.journals())
        except CoordinatorError as error:
            log.info("journal %s: which senders are no more is not known: %s", hosted.host.journal, error)
            return
        for sequence in dead:
            hosted.host.post(SequenceChecked(sequence, False))

    async def _stop(self, journal: str) -> None:
        hosted = self.hosted.pop(journal, None)
        if hosted is None:
            return  # it was lost while others were released
        log.info("interval %s: released, sequencer %d", journal, hosted.sequencer)
        await self._release(hosted)

    async def _release(self, hosted: Hosted) -> None:
        self._forget(hosted)
        await hosted.host.close()

    def _forget(self, hosted: Hosted) -> None:
        """Remove everything that must be gone before a successor is opened here."""
        self.routing.release(hosted.built.bindings)
        self.authority.forget(hosted.owned.incarnation, hosted.built.core.keys)
        self.tallies.leave(hosted.host.journal)
        if hosted.built.log_of:
            self.logs.dropped(hosted.built.log_of)

    def _place_of(self, incarnation: str) -> Place:
        table = self.catalog.tables.get(incarnation)
        computation, topology = table.origin if table is not None else ("", "")
        return topology, computation

    def _place_of_scope(self, scope: Scope) -> Place | None:
        """The computation whose hook runs in ``scope``. The watchdog's thread calls this, so the hosts are copied."""
        for hosted in list(self.hosted.values()):
            core = hosted.built.core
            if isinstance(core, IntervalCore) and core.state.scope is scope:
                return self._place_of(hosted.owned.incarnation)
        return None

    def _tell(self, watermarks: SenderWatermarks) -> None:
        for hosted in self.hosted.values():
            hosted.host.post(watermarks)

    def _notify_hosts(self) -> None:
        retired = frozenset(self.catalog.retired) - self._reported_retired
        self._reported_retired = frozenset(self.catalog.retired)
        gone, self._computations = self._computations - self.catalog.tables.keys(), frozenset(self.catalog.tables)
        if gone:
            # A removed sender never advances its ACK mark again, so its duplicate-check state is dropped here.
            self._forget_dead_later(*self.hosted.values())
        ended, queries = self.catalog.retired_injectors(), frozenset(self.catalog.retired_queries)
        for hosted in self.hosted.values():
            inputs = hosted.built.inputs
            senders, slack = self._builder.senders(inputs), self._builder.slack(inputs)
            mine = frozenset().union(*(ended.get(stream, frozenset()) for stream in inputs))
            changed = CatalogChanged(senders, slack=slack, retired=retired, ended_injectors=mine, ended_queries=queries)
            hosted.host.post(changed)

    # What hosts need (``HostPeers``).

    def send(self, host: CoreHost, send: SendDelivery) -> None:
        """Send a batch to its owner."""
        self._sending.send(host, send)

    def report(self, report: Report) -> None:
        """Pass a report on to the authority."""
        self.authority.report(report)

    def _report_refused(self, computation: str, keys: KeyInterval, sequencer: int) -> None:
        for hosted in list(self.hosted.values()):
            same = hosted.owned.incarnation == computation and hosted.built.core.keys == keys
            if same and hosted.sequencer == sequencer:
                hosted.host.post(Deposed("the authority refused a report: a larger sequencer holds the keys"))

    def _pending_of(self, computation: str) -> dict[Member, PendingWork]:
        mine = [one.built.core for one in self.hosted.values() if one.owned.incarnation == computation]
        return {core.keys: pending_work(core.state) for core in mine if isinstance(core, IntervalCore)}

    async def accept(self, request: AcceptSequencer) -> int:
        """Let the authority accept a sequencer (G4)."""
        return await self.authority.accept(request.computation, request.keys, request.sequencer)

    async def sequence_lives(self, sequence: str) -> bool:
        """Whether ``sequence`` is the journal of a live interval, or of a parent of one, by a linearizable read."""
        return await journal_lives(self.coordinator, self.catalog, sequence)

    def lost(self, host: CoreHost, reason: str) -> None:
        """The core has lost its interval to a successor, or this worker must get a fresh sequencer for it."""
        hosted = self.hosted.get(host.journal)
        log.log(logging.ERROR if host.fault else logging.WARNING, "interval %s: lost: %s", host.journal, reason)
        if hosted is None or hosted.host is not host:
            return
        self._given_up[host.journal, hosted.sequencer] = reason
        if host.damage:
            self._quarantine(hosted, host.damage)
        del self.hosted[host.journal]
        self._forget(hosted)
        self._background(host.close())
        if host.fault:
            self._mend(host.journal)

    def _quarantine(self, hosted: Hosted, why: str) -> None:
        """Stop the interval: it is not served, and its stored data is not overwritten, until it is assigned again."""
        incarnation = hosted.owned.incarnation
        place = (hosted.host.journal, hosted.sequencer)
        self.quarantined[place] = Quarantined(incarnation, *self._place_of(incarnation), why)
        log.error(
            "interval %s is quarantined: restore what is damaged from a snapshot or a replica, then have it opened "
            "again by `millwheel interval move %s` or by starting this worker anew",
            *place[:1] * 2,
        )

    def _mend(self, journal: str) -> None:
        loop = asyncio.get_running_loop()
        errors = self._errors.fault(journal, loop.time())
        if errors is None:
            log.error("interval %s: too many errors in succession: it stays down until this worker restarts", journal)
        else:
            delay = RESTART_BACKOFF.delay(errors, random.random())
            log.warning("interval %s: is opened again in %.1f s", journal, delay)
            loop.call_later(delay, self._registration.renew_from_scratch)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _specs(
    found: tuple[catalog_pb2.TopologyRecord, topology_pb2.ComputationSpec],
) -> tuple[topology_pb2.TopologySpec, topology_pb2.ComputationSpec]:
    return found[0].spec, found[1]
