"""Alerts of a cluster's processes and services really fire, and end when these are back: `make test-alerts`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.local.cassandra import CassandraCluster
from deploy.local.child import ChildProcess
from deploy.local.cluster import settings_of
from deploy.local.daemons import Daemons
from deploy.local.etcd import EtcdCluster
from deploy.local.prometheus import Prometheus
from examples.demo.showing import say
from tests.monitoring import shop as program
from tests.monitoring.incidents import OnCall, Shop, quick
from tests.patience import patience, until
from tests.submitting import submit_copy

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@dataclass(frozen=True, slots=True)
class WatchedCluster:
    """A cluster of processes with a shop, and an operator on call."""

    etcd: EtcdCluster
    cassandra: CassandraCluster
    daemons: Daemons
    on_call: OnCall

    def processes(self, role: str) -> list[ChildProcess]:
        """All daemons of a role."""
        return [process for name, process in self.daemons.services.processes.items() if name.startswith(role)]

    async def leader(self, but: str = "") -> str:
        """The name of the master that leads, once it is another one than ``but``."""
        pages = {page: name for name, page in self.daemons.metrics.items()}

        def found() -> str:
            leading = self.on_call.prometheus.values("millwheel_master_leads == 1")
            return next((name for labels, _ in leading if (name := pages[labels["instance"]]) != but), "")

        return str(await until(found, patience(20), every=0.5))


@asynccontextmanager
async def watched_cluster(place: Path) -> AsyncIterator[WatchedCluster]:
    """A cluster that works. No alert fires."""
    etcd = EtcdCluster(place / "etcd")
    cassandra = CassandraCluster(place / "cassandra", heap_mebibytes=512, quick_start=True)
    daemons = Daemons(place, settings_of(etcd, cassandra), say, workers=2)
    async with etcd, cassandra, daemons:
        await submit_copy(daemons.address, program.__file__, "shop", place)
        pages: dict[str, list[str]] = {}
        for name, page in daemons.metrics.items():
            pages.setdefault(name.partition(" ")[0], []).append(page)
        with Prometheus(place / "prometheus", pages, rules=quick) as prometheus:
            async with Shop(daemons.address).open():
                await until(lambda: asyncio.to_thread(prometheus.is_ready), patience(20), every=0.1)
                cluster = WatchedCluster(etcd, cassandra, daemons, OnCall(daemons.address, prometheus))
                await until(lambda: prometheus.values("sum(millwheel_records_total) > 0"), patience(20), every=0.5)
                await cluster.on_call.quiet()
                yield cluster


async def test_alerts_of_a_cluster_fire_and_end(tmp_path: Path) -> None:
    """One cluster for all incidents, because it takes most of a minute to start."""
    async with watched_cluster(tmp_path) as cluster:
        for incident in (_workers_hang, _masters_hang, _leaders_die, _coordinator_hangs, _store_hangs, _store_is_slow):
            say(incident.__name__.strip("_").replace("_", " "))
            await incident(cluster)


async def _workers_hang(cluster: WatchedCluster) -> None:
    workers = cluster.processes("worker")
    for worker in workers:
        worker.pause()
    await cluster.on_call.paged("MillwheelProcessDown", "MillwheelIntervalsStranded")
    await cluster.on_call.finds("there are no workers: start `millwheel worker run`", "cluster", "health")
    for worker in workers:
        worker.resume()
    await cluster.on_call.quiet()


async def _masters_hang(cluster: WatchedCluster) -> None:
    for master in cluster.processes("master"):
        master.pause()
    await cluster.on_call.paged("MillwheelNoLeader", "MillwheelProcessDown")
    for master in cluster.processes("master"):
        master.resume()
    await cluster.on_call.quiet()


async def _leaders_die(cluster: WatchedCluster) -> None:
    leader = await cluster.leader()
    for _ in range(3):
        cluster.daemons.kill(leader)
        leader = await cluster.leader(but=leader)
        await until(lambda: cluster.on_call.prometheus.values("count(millwheel_master_leads) > 1"), patience(20), 0.5)
    await cluster.on_call.paged("MillwheelLeaderChanges")


async def _coordinator_hangs(cluster: WatchedCluster) -> None:
    cluster.etcd.pause(0)
    await cluster.on_call.paged("MillwheelCoordinatorFailing")
    cluster.etcd.resume(0)
    await cluster.on_call.quiet()


async def _store_hangs(cluster: WatchedCluster) -> None:
    (node,) = cluster.cassandra.nodes
    node.pause()
    await cluster.on_call.paged("MillwheelStoreFailing")
    await cluster.on_call.finds("the state store does not answer", "cluster", "health")
    node.resume()
    await cluster.on_call.quiet()


async def _store_is_slow(cluster: WatchedCluster) -> None:
    (node,) = cluster.cassandra.nodes

    async def falter() -> None:
        while True:
            node.pause()
            try:
                await asyncio.sleep(2.0)
            finally:
                node.resume()
            await asyncio.sleep(0.5)

    faltering = asyncio.create_task(falter())
    try:
        await cluster.on_call.paged("MillwheelStoreSlow")
    finally:
        faltering.cancel()
        await asyncio.gather(faltering, return_exceptions=True)
    await cluster.on_call.quiet()
