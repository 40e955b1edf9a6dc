"""ClusterService: the health of the whole cluster, and every problem that needs an operator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from millwheel.coordination.contract import DamagedValueError
from millwheel.master.backlogs import backlog_problems, interval_backlog
from millwheel.master.bad_sources import bad_source_problems
from millwheel.master.event_log import readable_events
from millwheel.master.health_problems import cluster_problems, damage_problems, health_problem, hook_problems
from millwheel.master.hook_failures import hook_failures
from millwheel.master.leader_changes import leader_problems
from millwheel.master.loads import FRESH
from millwheel.master.missing_workers import missing_workers
from millwheel.master.replica import MasterReplica, steady_clock
from millwheel.master.services.events import list_events
from millwheel.master.services.overview import explain_hold, overview
from millwheel.master.silences import injected_groups, silence_texts
from millwheel.master.stream_resolution import refuse_unknown_stream, resolve_stream
from millwheel.master.topology_plans import refuse_unknown_topology
from millwheel.master.trouble import (
    link_problems,
    node_problems,
    slow_store_problems,
    stall_problems,
    write_problems,
)
from millwheel.master.unfed import unfed_problems
from millwheel.master.views import names_of
from millwheel.model.catalog import ACTIVE_STATES, Catalog, incarnations_of
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.clock import wall_now
from millwheel.rpc.errors import answering
from millwheel.rpc.hook_failures import AWAITED_PROBLEM
from millwheel.rpc.v1 import cluster_pb2 as wire
from millwheel.rpc.v1 import cluster_pb2_grpc
from millwheel.rpc.v1.watermark_pb2 import GroupExplanation
from millwheel.store.contract import JournalMissingError, StoreError

__all__ = ["ClusterServicer"]

_DEADLINE_SECONDS: Final = 2.0
_PROBE: Final = "health"
"""A journal that never exists. The health check only needs the store's answer that it is missing."""

Context = grpc.aio.ServicerContext[Any, Any]


class ClusterServicer(cluster_pb2_grpc.ClusterServiceServicer):
    """Answers from the catalog, from the workers' last load reports, and from calls to authority and store."""

    def __init__(self, replica: MasterReplica) -> None:
        self._replica = replica

    async def GetClusterHealth(
        self, request: wire.GetClusterHealthRequest, context: Context
    ) -> wire.GetClusterHealthResponse:
        """Return the whole health report. Parts that do not answer in time are marked as such."""
        return await answering(context, self._health)

    async def ListHookFailures(
        self, request: wire.ListHookFailuresRequest, context: Context
    ) -> wire.ListHookFailuresResponse:
        """Return the failures from the workers' last reports, some seconds old."""
        return await answering(context, lambda: self._hook_failures(request))

    async def GetOverview(self, request: wire.GetOverviewRequest, context: Context) -> wire.GetOverviewResponse:
        """Return the health, and the rows of topologies, computations, streams and injector processes."""
        return await answering(context, lambda: overview(self._replica, request, self._health))

    async def ListEvents(self, request: wire.ListEventsRequest, context: Context) -> wire.ListEventsResponse:
        """Return a page of what has happened, the newest first."""

        async def work() -> wire.ListEventsResponse:
            return list_events((await self._replica.term()).catalog, request)

        return await answering(context, work)

    async def ExplainHold(self, request: wire.ExplainHoldRequest, context: Context) -> wire.ExplainHoldResponse:
        """Return what holds a computation's low watermark."""
        return await answering(context, lambda: explain_hold(self._replica, request))

    async def _hook_failures(self, request: wire.ListHookFailuresRequest) -> wire.ListHookFailuresResponse:
        known = (await self._replica.term()).catalog
        if request.topology and request.topology not in known.topologies:
            refuse_unknown_topology(request.topology, known)
        stream = resolve_stream(request.stream, known) if request.stream else ""
        if stream and known.stream(stream) is None:
            refuse_unknown_stream(stream, known)
        found = hook_failures(
            known,
            self._replica.book,
            wall_now(),
            topology=request.topology,
            computation=request.computation,
            stream=stream,
        )
        return wire.ListHookFailuresResponse(computations=found)

    async def _health(
        self, explaining: Awaitable[Mapping[str, GroupExplanation]] | None = None
    ) -> wire.GetClusterHealthResponse:
        """Return the health. ``explaining``: what the authority says of groups, those of injectors among them."""
        known = (await self._replica.term()).catalog
        response = wire.GetClusterHealthResponse(intervals=_totals(known), format=known.format)
        injected = injected_groups(known)
        store, authorities, holds = await asyncio.gather(
            self._store(),
            self._authorities(known),
            explaining or self._replica.observer.explain_all(known, injected),
        )
        silences = silence_texts({group: holds[group] for group in injected if group in holds})
        response.store.CopyFrom(store)
        response.store.commits_per_second, response.store.commit_seconds = self._replica.book.appends()
        reports = self._replica.book.workers.values()
        response.store.repeating_journals = sum(one.load.repeating_journals for one in reports)
        response.authorities.extend(authorities)
        response.masters.extend(self._masters(known))
        response.workers.extend(self._workers(known))
        response.departed.extend(missing_workers(readable_events(known.events), known.workers, wall_now()))
        names = {}
        with suppress(DamagedValueError):  # the problems below report the damage
            names = names_of(known)
        for hot in self._replica.hot_keys:
            topology, computation = names.get(hot.incarnation, ("", hot.incarnation))
            response.hot_keys.add(
                topology=topology, computation=computation, key=hot.key, share=hot.share, busy=hot.busy
            )
        details = self._problems(known, response, names, silences)
        response.problem_details.extend(details)
        response.problems.extend(one.text for one in details)
        return response

    def _problems(
        self,
        known: Catalog,
        response: wire.GetClusterHealthResponse,
        names: Mapping[IncarnationId, tuple[str, str]],
        silences: Iterable[str],
    ) -> list[wire.HealthProblem]:
        """Return what an operator should act on.

        Args:
            known: The catalog.
            response: The health, without its problems.
            names: The topology and the name of each computation, by incarnation.
            silences: The texts about silent injector processes.
        """
        backlogs = [
            interval_backlog(known, self._replica.book, hot.incarnation, hot.journal) for hot in self._replica.hot_keys
        ]
        details = [
            *cluster_problems(response, bool(known.topologies), backlogs),
            *_under("MillwheelInjectorSilent", silences),
            *unfed_problems(known, wall_now()),
            *bad_source_problems(known, self._replica.book, wall_now()),
            *self._troubles(known, response),
            *_under("MillwheelCertificateEnds", self._replica.certificate_problems()),
            *damage_problems(known, self._replica.book, names),
        ]
        with suppress(DamagedValueError):
            failing = hook_failures(known, self._replica.book, wall_now(), awaited_for=AWAITED_PROBLEM)
            details += hook_problems(failing)
            explained = {(one.topology, one.computation) for one in failing}
            explained |= {(one.topology, one.computation) for one in response.hot_keys}
            # While the store does not answer, all work waits for it.
            if not any(one.runbook == "MillwheelStoreFailing" for one in details):
                details += backlog_problems(known, self._replica.book, explained, wall_now())
        return details

    def _masters(self, known: Catalog) -> Iterator[wire.MasterHealth]:
        own = self._replica.address
        for address in sorted({*known.masters, own}):
            record = known.masters.get(address)
            console = "" if record is None else record.console
            yield wire.MasterHealth(
                address=address, leads=address == own, console=self._replica.console if address == own else console
            )

    def _troubles(self, known: Catalog, response: wire.GetClusterHealthResponse) -> Iterator[wire.HealthProblem]:
        """Yield what hampers processes, by name."""
        workers = response.workers
        outages, stalled = self._replica.conditions.node_outages(), self._replica.conditions.stalled()
        reporting = {one.worker_id for one in workers if one.answers}
        loads = {name: report.load for name, report in self._replica.book.workers.items() if name in reporting}
        yield from _under("MillwheelProcessSlow", stall_problems(workers, self._replica.address, stalled))
        yield from _under("MillwheelStoreNodeDown", node_problems(workers, outages))
        yield from _under("MillwheelLinkBroken", link_problems(workers, outages))
        yield from _under("MillwheelStoreFailing", write_problems(loads))
        yield from _under("MillwheelStoreSlow", slow_store_problems(response.store.commit_seconds))
        elections = leader_problems(readable_events(known.events), known.masters, wall_now())
        yield from _under("MillwheelLeaderChanges", elections)

    def _workers(self, known: Catalog) -> Iterator[wire.WorkerHealth]:
        owned = dict.fromkeys(known.workers, 0)
        for interval_map in known.maps.values():
            for (worker, registration), intervals in interval_map.owned.items():
                if known.lives(worker, registration):
                    owned[worker] += len(intervals)
        now, book = steady_clock(), self._replica.book
        for name, record in sorted(known.workers.items()):
            report = book.workers.get(name)
            yield wire.WorkerHealth(
                worker_id=name,
                address=record.endpoint.address,
                daemon=record.daemon,
                package=record.package,
                intervals=owned[name],
                answers=not book.is_silent(name, now, FRESH),
                cpu=report.load.cpu if report is not None else 0.0,
                resident_bytes=report.load.resident_bytes if report is not None else 0,
                memory_limit_bytes=report.load.memory_limit_bytes if report is not None else 0,
                stalled=report.load.stalled if report is not None else 0.0,
                broken_links=report.load.broken_links if report is not None else (),
            )

    async def _authorities(self, known: Catalog) -> list[wire.AuthorityHealth]:
        addresses = {shard: record.endpoint.address for shard, record in known.authorities.items()}
        shards = sorted({*addresses, *range(known.authority_shards)})
        answers = await asyncio.gather(*(self._answers(addresses.get(shard, "")) for shard in shards))
        return [
            wire.AuthorityHealth(shard=shard, address=addresses.get(shard, ""), answers=answer)
            for shard, answer in zip(shards, answers, strict=True)
        ]

    async def _answers(self, address: str) -> bool:
        if not address:
            return False
        stub = health_pb2_grpc.HealthStub(self._replica.observer.channel(address))
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_DEADLINE_SECONDS)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def _store(self) -> wire.StoreHealth:
        began = time.monotonic()
        try:
            async with asyncio.timeout(_DEADLINE_SECONDS):
                with suppress(JournalMissingError):
                    await self._replica.store.read_head(_PROBE)
        except (StoreError, TimeoutError) as error:
            why = str(error) or f"no answer within {_DEADLINE_SECONDS:g} s"
            return wire.StoreHealth(error=why, read_seconds=time.monotonic() - began)
        return wire.StoreHealth(answers=True, read_seconds=time.monotonic() - began)


def _totals(known: Catalog) -> wire.IntervalTotals:
    """Count all intervals that should have an owner: those of running topologies, and those of logs."""
    logs = [log.incarnation for log in known.logs.values()]
    incarnations = list(logs)
    for record in known.topologies.values():
        if record.state in ACTIVE_STATES:
            incarnations += incarnations_of(record)
    totals = wire.IntervalTotals(logs=sum(len(known.maps[one]) for one in logs if one in known.maps))
    for interval_map in (known.maps[one] for one in incarnations if one in known.maps):
        totals.all += len(interval_map)
        for (worker, registration), intervals in interval_map.owned.items():
            totals.without_owner += 0 if known.lives(worker, registration) else len(intervals)
        totals.with_parents += sum(bool(interval.parents) for interval in interval_map)
    return totals


def _under(runbook: str, texts: Iterable[str]) -> Iterator[wire.HealthProblem]:
    """Yield problems of one section of the runbook."""
    for text in texts:
        yield health_problem(text, runbook)
