"""The cluster that faults befall: deploy/local's, with links that can be cut and clocks that can be stepped."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from deploy.local.cassandra import CassandraCluster
from deploy.local.cluster import catalog_of, settings_of
from deploy.local.daemons import Daemons
from deploy.local.etcd import EtcdCluster
from millwheel.client.control import ControlClient
from millwheel.model.catalog import Catalog
from tests.disks import small_disk
from tests.faults import program
from tests.faults.clocks import Clocks
from tests.faults.links import Links, through
from tests.submitting import submit_copy

__all__ = ["Cluster", "cluster", "etcd_status"]

_NAME: Final = "faults"
_PATIENCE: Final = 60.0
_MORE: Final = '\n[rpc]\nadvertise = "127.0.1.1"\n\n[master]\n'


class Cluster:
    """Everything, running; who is who in it."""

    def __init__(
        self,
        place: Path,
        etcd: EtcdCluster,
        cassandra: CassandraCluster,
        daemons: Daemons,
        links: Links,
        clocks: Clocks,
        client: ControlClient,
    ) -> None:
        self.place = place
        self.etcd = etcd
        self.cassandra = cassandra
        self.daemons = daemons
        self.links = links
        self.clocks = clocks
        self.client = client
        self.disk: Path | None = None
        """The small file system that the last node of Cassandra is on, if it is."""

    @property
    def address(self) -> str:
        """The masters, for clients."""
        return self.daemons.address

    def pids(self) -> dict[str, int]:
        """Of all processes that run, by name."""
        found = {name: process.pid for name, process in self.daemons.services.processes.items() if process.is_running}
        found |= {f"etcd {number}": one.pid for number, one in enumerate(self.etcd.members, 1) if one.is_running}
        return found | {f"cassandra {number}": one.pid for number, one in enumerate(self.cassandra.nodes, 1)}

    async def submit(self) -> None:
        """Run the topology of the load."""
        await submit_copy(self.address, program.__file__, "faults", self.place, _PATIENCE)

    # Who is who.

    async def leading_master(self) -> str:
        """The name of the daemon that leads."""
        await self.client.list_topologies()
        return self._named(self.client.address)

    async def standby_master(self) -> str:
        """The name of one that does not lead."""
        leading = await self.leading_master()
        return next(name for name in ("master 1", "master 2") if name != leading)

    async def authority_of_shard(self, shard: int) -> str:
        """The name of the daemon that serves a shard; it is waited for."""
        while (record := (await self.catalog()).authorities.get(shard)) is None:  # noqa: ASYNC110 it comes by itself
            await asyncio.sleep(0.2)
        return self._named(record.endpoint.address)

    async def busiest_worker(self) -> str:
        """The name of the worker that owns most of the intervals that all else waits for, and that set the timers."""
        found = await self.client.list_intervals("faults", "numberer")
        owned = Counter(one.interval.owner.worker_id for one in found if one.interval.HasField("owner"))
        return max(owned, key=lambda name: owned[name]).replace("-", " ").removesuffix(".0")

    async def leading_member(self) -> int:
        """The number of etcd's leader."""
        async with asyncio.timeout(_PATIENCE):
            while True:
                for number, endpoint in enumerate(self.etcd.endpoints):
                    with suppress(OSError, ValueError, KeyError):
                        status = await asyncio.to_thread(etcd_status, endpoint)
                        if status["header"]["member_id"] == status["leader"]:
                            return number
                await asyncio.sleep(0.2)

    async def catalog(self) -> Catalog:
        """What etcd says now."""
        return await catalog_of(self.etcd, _NAME)

    async def all_there(self) -> bool:
        """Whether all workers are there, and every interval has an owner."""
        health = await self.client.cluster_health()
        owned = [one.interval.HasField("owner") for one in await self.client.list_intervals()]
        return len(health.workers) == len(self.daemons.workers) and all(owned)

    def _named(self, address: str) -> str:
        """The daemon there. Clients get other hosts, with the same ports."""
        ports = {one.rpartition(":")[2]: name for name, one in self.daemons.addresses.items()}
        return ports[address.rpartition(":")[2]]

    async def settled(self) -> None:
        """Return when all are there."""
        async with asyncio.timeout(_PATIENCE):
            while not await self.all_there():  # noqa: ASYNC110 other processes are looked at
                await asyncio.sleep(0.2)


def etcd_status(endpoint: str) -> dict[str, Any]:
    """What a member of etcd says of itself."""
    request = urllib.request.Request(f"http://{endpoint}/v3/maintenance/status", data=b"{}")
    with urllib.request.urlopen(request, timeout=1.0) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


@asynccontextmanager
async def cluster(
    place: Path,
    say: Callable[[str], None],
    *,
    nodes: int,
    members: int,
    disk: str = "",
    settings: str = "",
    history: float = 300,
    commitlog: int = 512,
) -> AsyncIterator[Cluster]:
    """All of it, serving; it ends with the block, or with this process, however that ends.

    ``disk``: the size of a file system for the last node of Cassandra, where one may be mounted. ``settings``: more of
    [master]. ``history``: for so many seconds etcd keeps what was changed. ``commitlog``: MiB of Cassandra's.
    """
    etcd = EtcdCluster(place / "etcd", members)
    cassandra = CassandraCluster(
        place / "cassandra", nodes, heap_mebibytes=512, broadcast=through, commitlog_mebibytes=commitlog
    )
    clocks = Clocks(place / "clocks")
    text = through(settings_of(etcd, cassandra, _NAME)) + _MORE + settings
    text = text.replace("[coordinator]", f"[coordinator]\nhistory_seconds = {history}", 1)
    daemons = Daemons(place, text, say, code=clocks.code())
    with small_disk(cassandra.nodes[-1].config.folder, disk) as mounted:
        async with Links(lambda: {name: one.pid for name, one in daemons.services.processes.items()}) as links:
            for name, address in _servers(etcd, cassandra, daemons).items():
                await links.serve(name, address)
            for address in daemons.addresses.values():
                clocks.make(address)
            say(f"starting Cassandra ({nodes} {'node' if nodes == 1 else 'nodes'}) and etcd ({members})")
            async with etcd, cassandra:
                say(f"starting {', '.join(daemons.services.processes)}")
                async with daemons, ControlClient(daemons.address, patience=_PATIENCE) as client:
                    found = Cluster(place, etcd, cassandra, daemons, links, clocks, client)
                    found.disk = mounted
                    yield found


def _servers(etcd: EtcdCluster, cassandra: CassandraCluster, daemons: Daemons) -> dict[str, str]:
    """Everything that is reached through links."""
    found = {f"cassandra {number}": one.address for number, one in enumerate(cassandra.nodes, 1)}
    found |= {f"etcd {number}": one for number, one in enumerate(etcd.endpoints, 1)}
    return found | daemons.addresses
