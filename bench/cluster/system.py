"""The cluster that is measured: Cassandra, etcd and MillWheel's daemons, and the requests to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

from deploy.local.cassandra import CassandraCluster
from deploy.local.cassandra_config import CommitLogSync
from deploy.local.cluster import catalog_of, settings_of
from deploy.local.daemons import Daemons
from deploy.local.etcd import EtcdCluster
from millwheel.cli.loading import load
from millwheel.client.control import ControlClient
from millwheel.model.catalog import Catalog
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import interval_pb2 as wire
from millwheel.rpc.v1.common_pb2 import Endpoint
from millwheel.store.cassandra import CassandraSettings

__all__ = ["Components", "Say", "System", "components", "system", "until"]

_NAME: Final = "bench"
_SETTINGS: Final = "\n[master]\nbalance = false\nintervals_per_computation = 1\n"
_PATIENCE: Final = 60.0

Found = TypeVar("Found")
Say = Callable[[str], None]


class Components:
    """Cassandra and etcd. Their data and logs are in ``place``."""

    def __init__(self, place: Path, commitlog_sync: CommitLogSync) -> None:
        self.place = place
        self.etcd = EtcdCluster(place / "etcd")
        self.cassandra = CassandraCluster(place / "cassandra", commitlog_sync=commitlog_sync)

    @property
    def store_settings(self) -> CassandraSettings:
        """The store settings of the daemons."""
        return CassandraSettings(self.cassandra.contact_points, keyspace=_NAME, replication="1")

    async def catalog(self) -> Catalog:
        """The coordinator's present records."""
        return await catalog_of(self.etcd, _NAME)


@asynccontextmanager
async def components(place: Path, commitlog_sync: CommitLogSync, say: Say) -> AsyncIterator[Components]:
    """Start both components. They end with the block, or with this process, even if the process is killed."""
    found = Components(place, commitlog_sync)
    say("starting Cassandra and etcd")
    async with found.etcd, found.cassandra:
        yield found


class System:
    """The daemons, and the requests to them."""

    def __init__(self, components: Components, daemons: Daemons, client: ControlClient) -> None:
        self.components = components
        self.daemons = daemons
        self.client = client
        self.workers = [f"worker-{number}.0" for number in range(1, len(daemons.workers) + 1)]
        """The workers' names, as the master knows them."""

    @property
    def address(self) -> str:
        """The masters' address, for clients."""
        return self.daemons.address

    def kill(self, worker: str) -> None:
        """SIGKILL a worker. It is restarted after a second."""
        self.daemons.kill(f"worker {self.workers.index(worker) + 1}")

    def other(self, worker: str) -> str:
        """The worker that follows this one."""
        return self.workers[(self.workers.index(worker) + 1) % len(self.workers)]

    # Topologies and their intervals.

    async def submit(self, target: str) -> catalog.TopologyRecord:
        """Submit the topology at ``module:attribute``."""
        packaged = await asyncio.to_thread(load, target)
        await self.client.upload_package(packaged.package.digest, packaged.package.data)
        return await self.client.submit(packaged.spec())

    async def cancel(self, topology: str) -> None:
        """Cancel a topology. Its state is deleted."""
        await self.client.cancel(topology)

    async def intervals(self, topology: str, computation: str) -> list[catalog.IntervalRecord]:
        """The intervals in key order."""
        found = await self.client.list_intervals(topology, computation)
        return sorted((one.interval for one in found), key=lambda one: one.keys.start)

    async def arrange(
        self, topology: str, computation: str, points: Sequence[bytes], owners: Sequence[str]
    ) -> list[catalog.IntervalRecord]:
        """Make a computation's intervals begin at "" and at ``points``, on these workers. Return when this is done."""
        for point in points:
            if point not in {one.keys.start for one in await self.settled(topology, computation)}:
                name = wire.IntervalName(topology=topology, computation=computation, key=point)
                await self.client.split_interval(name, point)
        found = await self.settled(topology, computation)
        for one, owner in zip(found, owners, strict=True):
            if one.owner.worker_id != owner:
                await self.client.move_interval(wire.IntervalName(journal=one.journal), owner)
        return await self.settled(topology, computation)

    async def settled(self, topology: str, computation: str) -> list[catalog.IntervalRecord]:
        """Return the intervals when each has an owner and needs no parent journals."""

        async def all_settled() -> list[catalog.IntervalRecord] | None:
            found = await self.intervals(topology, computation)
            return found if all(one.HasField("owner") and not one.parents for one in found) else None

        return await until(all_settled, f"the intervals of {topology}/{computation} are not settled")

    async def log_on(self, stream: str, worker: str) -> None:
        """Put the log of a stream on this worker."""
        stream = (await self.client.ensure_stream_log(stream)).stream.name

        async def owned() -> catalog.IntervalRecord | None:
            found = [one.interval for one in await self.client.list_intervals() if one.stream == stream]
            return found[0] if found and found[0].HasField("owner") else None

        log = await until(owned, f"stream {stream} has no log")
        if log.owner.worker_id != worker:
            await self.client.move_interval(wire.IntervalName(journal=log.journal), worker)

    async def owner_of(self, topology: str, computation: str, key: bytes) -> Endpoint:
        """The owner of a key. RequestError if the key has none."""
        for one in reversed(await self.intervals(topology, computation)):
            if one.keys.start <= key and one.HasField("owner"):
                return one.owner
        raise RequestError(FailureCode.NOT_FOUND, f"no worker owns key {key!r} of {topology}/{computation}", "")


@asynccontextmanager
async def system(
    found: Components, say: Say, workers: int, worker_code: str = "", more: str = ""
) -> AsyncIterator[System]:
    """Start masters, authorities and workers, and wait until they serve. They end with the block.

    ``worker_code``: see :class:`Daemons`. ``more``: further settings, as TOML.
    """
    settings = settings_of(found.etcd, found.cassandra, _NAME) + _SETTINGS + more
    daemons = Daemons(found.place, settings, say, workers=workers, worker_code=worker_code)
    say(f"starting {', '.join(daemons.services.processes)}")
    async with daemons, ControlClient(daemons.address, patience=_PATIENCE) as client:
        yield System(found, daemons, client)


async def until(look: Callable[[], Awaitable[Found | None]], what: str, within: float = _PATIENCE) -> Found:
    """Poll until there is a value. TimeoutError names what is missing."""
    end = time.monotonic() + within
    while (found := await look()) is None:
        if time.monotonic() > end:
            raise TimeoutError(f"{what}, after {within:.0f} s")
        await asyncio.sleep(0.1)
    return found
