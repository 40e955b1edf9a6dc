"""``millwheel authority run``: a candidate for each shard of the low watermark authority (section 7.2).

Each shard has a leader, elected in the coordinator, who fences the shard's journal before anything else; who was
deposed without noticing can neither journal nor, therefore, broadcast. A shard that is served here has a server of its
own, on the port after the daemon's that is the shard's. Who has shards already lets others stand first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shell import AuthorityShell
from millwheel.cli.daemons.frame import Daemon, Role
from millwheel.cli.daemons.pieces import cancel, draw_sequencer, ensure_journal, keep
from millwheel.cli.daemons.places import advertised, place_of, tls_of
from millwheel.cli.logs import fields
from millwheel.coordination.contract import CoordinatorError, Put
from millwheel.coordination.election import Election, Leadership
from millwheel.core.catalog_keys import authority_key, shard_leadership_key
from millwheel.rpc.server import add_health, bind, create_server
from millwheel.rpc.v1.catalog_pb2 import AuthorityRecord
from millwheel.rpc.v1.common_pb2 import Endpoint
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server

__all__ = ["AUTHORITY"]

log = logging.getLogger("millwheel")

_GRACE: Final = 10.0
_SERVICES: Final = ("millwheel.v1.WatermarkService",)
_LOOKS: Final = 5
"""How often in a lease's time a candidate looks whether a shard is without a server."""
_STAND_BACK: Final = 1.5
"""Seconds that a candidate lets others stand first for each shard that it has."""


@asynccontextmanager
async def _authority(daemon: Daemon) -> AsyncIterator[None]:
    candidate = _Candidate(daemon)
    daemon.registry.register(candidate)
    async with AsyncExitStack() as stack:
        for shard in range(daemon.shards):
            task = asyncio.create_task(keep(f"authority shard {shard}", lambda shard=shard: candidate.stand(shard)))  # type: ignore[misc]
            stack.push_async_callback(cancel, task)
        yield


class _Candidate(Collector):
    """Stands for shards, and serves those that it gets."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._serving: dict[int, CollectorRegistry] = {}
        self._turn = asyncio.Lock()

    async def stand(self, shard: int) -> None:
        """Stand for a shard again and again, and serve it whenever elected."""
        coordinator, ttl = self._daemon.backends.coordinator, self._daemon.settings.authority.lease_seconds
        election = Election(coordinator, shard_leadership_key(shard), self._daemon.address, ttl)
        while True:
            try:
                leadership = await self._elected(shard, election)
            except (CoordinatorError, TimeoutError) as error:
                log.warning("standing for authority shard %d, again: %s", shard, error or "nobody was elected in time")
                leadership = None
            if leadership is None:
                await asyncio.sleep(ttl / _LOOKS)
                continue
            try:
                await self._serve(shard, leadership)
            finally:
                self._serving.pop(shard, None)
                await leadership.resign()

    async def _elected(self, shard: int, election: Election) -> Leadership | None:
        """Stand for a shard that nobody has, one at a time, and after those who have fewer; None if another has it."""
        if await election.leader() is not None:
            return None
        async with self._turn:
            await asyncio.sleep(_STAND_BACK * len(self._serving))
            if await election.leader() is not None:
                return None
            leadership = await asyncio.wait_for(election.campaign(), self._daemon.settings.authority.lease_seconds)
            self._serving[shard] = CollectorRegistry()
            return leadership

    async def _serve(self, shard: int, leadership: Leadership) -> None:
        """Serve a shard until another does, or the coordinator is not heard of for a lease's time."""
        backends = self._daemon.backends
        journal = f"authority.{shard}"
        registry = self._serving[shard]
        await ensure_journal(backends.store, journal)
        sequencer = await draw_sequencer(backends.coordinator)
        async with AsyncExitStack() as stack:
            shell = await AuthorityShell.open(backends.store, journal, sequencer, registry=registry)
            stack.push_async_callback(shell.close)
            address = await self._listen(stack, shard, shell)
            record = AuthorityRecord(shard=shard, endpoint=Endpoint(worker_id=self._daemon.address, address=address))
            put = Put(authority_key(shard), record.SerializeToString(), leadership.lease)
            if not (await backends.coordinator.transact([leadership.compare], [put])).committed:
                return
            log.info("authority shard %d is served here", shard, extra=fields(shard=shard, shard_address=address))
            why = await _first_end(shell, leadership)
            log.warning("authority shard %d is let go of: %s", shard, why)

    async def _listen(self, stack: AsyncExitStack, shard: int, shell: AuthorityShell) -> str:
        settings = self._daemon.settings
        place = place_of(AUTHORITY.name, settings)
        server = create_server()
        add_WatermarkServiceServicer_to_server(WatermarkServicer(shell), server)
        port = place.port + 1 + shard if place.port else 0
        bound = bind(server, port, place.host, tls_of(settings))
        await add_health(server, _SERVICES)
        await server.start()
        stack.push_async_callback(server.stop, None)
        return advertised(settings, bound, 1 + shard)

    def collect(self) -> Iterator[Metric]:
        """The metrics of the shards that are served here, each with its number."""
        merged: dict[str, Metric] = {}
        for shard, registry in list(self._serving.items()):
            for metric in registry.collect():
                family = merged.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    family.samples.append(sample._replace(labels={**sample.labels, "shard": str(shard)}))
        yield from merged.values()


async def _first_end(shell: AuthorityShell, leadership: Leadership) -> str:
    """Why it is over: the shard was deposed, or the leadership is lost."""
    stopped, lost = asyncio.ensure_future(shell.wait_stopped()), asyncio.ensure_future(leadership.lost())
    try:
        await asyncio.wait({stopped, lost}, return_when=asyncio.FIRST_COMPLETED)
        return stopped.result() if stopped.done() else "another was elected, or the lease has ended"
    finally:
        for task in (stopped, lost):
            task.cancel()


AUTHORITY: Final = Role("authority", _SERVICES, _authority, lambda settings: _GRACE)
