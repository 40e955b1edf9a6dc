"""MillWheel as it is measured beside other systems: the development server, and a cluster of processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench.peers.jobs import Job, Started
from bench.server import ServerProcess, submit
from deploy.local import etcd, jars
from deploy.local.cassandra import CassandraCluster
from deploy.local.cluster import settings_of
from deploy.local.daemons import Daemons
from deploy.local.etcd import EtcdCluster
from examples.demo.showing import say

__all__ = ["Cluster", "DevServer", "variables"]

_PROGRAM: Final = "bench.kafka_count.program"


@dataclass(slots=True)
class _Submitted:
    """A server that runs, and gets the topology. ``kill`` and ``again`` are for a crash, and what follows it."""

    address: str
    topology: str
    kill: Callable[[], None]
    again: Callable[[], None] = lambda: None

    async def start(self) -> None:
        await asyncio.to_thread(submit, self.address, self.topology, _PROGRAM)

    def check(self) -> None:
        """The service manager starts what ends, and the run's limit ends one that does not come to its end."""

    async def crash(self) -> None:
        self.kill()

    async def restart(self) -> None:
        await asyncio.to_thread(self.again)


def _given(job: Job) -> dict[str, str]:
    """The variables that the program reads."""
    sizes = {"WINDOW_MS": job.window_ms, "OUT_OF_ORDER_MS": job.out_of_order_ms}
    names = {"BROKER": job.broker, "FROM": job.source, "TO": job.target, **sizes}
    return {f"KAFKA_COUNT_{name}": str(value) for name, value in names.items()}


@contextmanager
def variables(given: Mapping[str, str]) -> Iterator[None]:
    """Variables of the environment, for all processes that are started in the block."""
    before = dict(os.environ)
    os.environ.update(given)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _versions() -> dict[str, str]:
    return {"openmillwheel": version("openmillwheel"), "confluent-kafka": version("confluent-kafka")}


@dataclass(frozen=True, slots=True)
class DevServer:
    """``millwheel server start-dev``: all roles and the store in one process. ``topology``: what runs there."""

    name: str = "millwheel-dev"
    topology: str = "counted"
    guarantee: str = "exactly once"

    def install(self) -> None:
        """It is this checkout."""

    def versions(self) -> dict[str, str]:
        return _versions()

    def settings(self, job: Job) -> dict[str, str]:
        return {"processes": "1"}

    @asynccontextmanager
    async def ready(self, job: Job) -> AsyncIterator[Started]:
        with variables(_given(job)):
            server = await asyncio.to_thread(ServerProcess, Path(job.place))
            try:
                yield _Submitted(server.address, self.topology, server.kill, server.start)
            finally:
                await asyncio.to_thread(server.stop)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Daemons as processes, with one member of etcd and one node of Cassandra, which are counted with them."""

    name: str = "millwheel-cluster"
    guarantee: str = "exactly once"

    def install(self) -> None:
        etcd.install()
        jars.install(jars.CASSANDRA)

    def versions(self) -> dict[str, str]:
        return {**_versions(), "cassandra": jars.CASSANDRA.version}

    def settings(self, job: Job) -> dict[str, str]:
        workers = {"workers": str(job.processes), "masters": "1", "authorities": "1"}
        return {**workers, "master.balance": "false", "cassandra commitlog_sync": "periodic"}

    @asynccontextmanager
    async def ready(self, job: Job) -> AsyncIterator[Started]:
        place = Path(job.place)
        members, nodes = EtcdCluster(place / "etcd"), CassandraCluster(place / "cassandra", commitlog_sync="periodic")
        settings = settings_of(members, nodes, "peers") + "\n[master]\nbalance = false\n"
        with variables(_given(job)):
            daemons = Daemons(place, settings, say, masters=1, authorities=1, workers=job.processes)
            async with members, nodes, daemons:
                yield _Submitted(daemons.address, "counted", lambda: _kill_workers(daemons, job.processes))


def _kill_workers(daemons: Daemons, count: int) -> None:
    """SIGKILL all workers. Their supervisor starts them again after a second."""
    for number in range(1, count + 1):
        daemons.kill(f"worker {number}")
