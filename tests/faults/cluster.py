"""The cluster for faults: that of deploy/local, with links that can be cut and clocks that can be stepped."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from deploy.local.cassandra import CassandraCluster
from deploy.local.cluster import catalog_of, settings_of
from deploy.local.daemons import Daemons
from deploy.local.etcd import EtcdCluster
from examples.demo.showing import say
from millwheel.client.control import ControlClient
from millwheel.rpc.v1.catalog_pb2 import AuthorityRecord
from tests.disks import small_disk
from tests.faults.clocks import Clocks
from tests.faults.links import Links, through
from tests.patience import patience, until

_NAME: Final = "faults"
PATIENCE: Final = patience(20)
"""The time limit of each wait, in seconds."""
_LINKED: Final = '\n[rpc]\nadvertise = "127.0.1.1"\n'


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that a fault can hit."""

    name: str
    kill: Callable[[], None]
    start: Callable[[], None]
    """Start the process again after a kill, and wait until it serves."""
    pause: Callable[[], None]
    resume: Callable[[], None]


@dataclass(frozen=True)
class Cluster:
    """A running cluster, and its processes' roles. ``disk``: the small disk of the last Cassandra node, or None."""

    etcd: EtcdCluster
    cassandra: CassandraCluster
    daemons: Daemons
    links: Links
    clocks: Clocks
    client: ControlClient
    disk: Path | None

    def pids(self) -> dict[str, int]:
        """The ids of all running processes, by name."""
        found = {name: process.pid for name, process in self.daemons.services.processes.items() if process.is_running}
        found |= {f"etcd {number}": one.pid for number, one in enumerate(self.etcd.members, 1) if one.is_running}
        return found | {f"cassandra {number}": one.pid for number, one in enumerate(self.cassandra.nodes, 1)}

    async def victim(self, role: str) -> Victim:
        """The process that has this role at present."""
        if role == "etcd":
            etcd, number = self.etcd, (await until(self._leading_member, PATIENCE, every=0.2)) - 1
            calls = [partial(call, number) for call in (etcd.kill, etcd.start, etcd.pause, etcd.resume)]
            return Victim(f"etcd {number + 1}, which led", *calls)
        if role == "cassandra":
            node = self.cassandra.nodes[-1]
            return Victim(f"cassandra {len(self.cassandra.nodes)}", node.kill, node.start, node.pause, node.resume)
        name = await self._daemon(role)
        process = self.daemons.services.processes[name]
        pause, resume = process.pause, process.resume
        return Victim(name, process.kill, lambda: None, pause, resume)

    async def _daemon(self, role: str) -> str:
        """The name of a role's daemon. A worker: with most intervals of ``numberer``, which sets timers."""
        if role == "worker":
            found = await self.client.list_intervals("faults", "numberer")
            owned = Counter(one.interval.owner.worker_id for one in found if one.interval.HasField("owner"))
            return max(owned, key=lambda name: owned[name]).replace("-", " ").removesuffix(".0")
        if role == "authority":
            record = await until(self._first_shard, PATIENCE, every=0.2)
            return self._named(record.endpoint.address)
        await self.client.list_topologies()
        leading = self._named(self.client.address)
        return leading if role == "leading master" else next(m for m in ("master 1", "master 2") if m != leading)

    async def _first_shard(self) -> AuthorityRecord | None:
        return (await catalog_of(self.etcd, _NAME)).authorities.get(0)

    async def _leading_member(self) -> int:
        """The number of etcd's leading member, from 1 on. 0 while none leads."""
        for number, endpoint in enumerate(self.etcd.endpoints, 1):
            with suppress(OSError, ValueError, KeyError):
                status = await asyncio.to_thread(etcd_status, endpoint)
                if status["header"]["member_id"] == status["leader"]:
                    return number
        return 0

    async def all_there(self) -> bool:
        """Whether all workers are registered, and every interval has an owner."""
        health = await self.client.cluster_health()
        owned = [one.interval.HasField("owner") for one in await self.client.list_intervals()]
        return len(health.workers) == len(self.daemons.workers) and all(owned)

    def _named(self, address: str) -> str:
        """The daemon at this address. Clients get other hosts, with the same ports."""
        ports = {one.rpartition(":")[2]: name for name, one in self.daemons.addresses.items()}
        return ports[address.rpartition(":")[2]]


def etcd_status(endpoint: str) -> dict[str, Any]:
    """The status of a member of etcd."""
    request = urllib.request.Request(f"http://{endpoint}/v3/maintenance/status", data=b"{}")
    with urllib.request.urlopen(request, timeout=1.0) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


@asynccontextmanager
async def cluster(
    place: Path,
    *,
    nodes: int,
    disk: str = "",
    settings: str = "",
    history: float = 300,
    commitlog: int = 512,
    workers: int = 3,
    with_consoles: bool = False,
    with_links: bool = True,
) -> AsyncIterator[Cluster]:
    """A cluster that serves. It ends with the block, and also if this process dies.

    It has so many ``nodes`` of Cassandra, and members of etcd. ``disk``: size of a file system for the last Cassandra
    node, if this machine can mount one. ``settings``: more settings of [master]. ``history``: seconds that etcd keeps
    old revisions. ``commitlog``: MiB of Cassandra's log. ``with_consoles``: masters serve the web console.
    ``with_links``: connections pass through the relays of ``links``, so that they can be cut.
    """
    etcd = EtcdCluster(place / "etcd", nodes)
    cassandra = CassandraCluster(
        place / "cassandra",
        nodes,
        heap_mebibytes=512,
        broadcast=through if with_links else None,
        commitlog_mebibytes=commitlog,
    )
    clocks = Clocks(place / "clocks")
    text = settings_of(etcd, cassandra, _NAME)
    text = (through(text) + _LINKED if with_links else text) + "\n[master]\n" + settings
    text = text.replace("[coordinator]", f"[coordinator]\nhistory_seconds = {history}", 1)
    daemons = Daemons(place, text, say, workers=workers, code=clocks.code(), with_consoles=with_consoles)
    with small_disk(cassandra.nodes[-1].config.folder, disk) as mounted:
        async with Links(lambda: {name: one.pid for name, one in daemons.services.processes.items()}) as links:
            servers = {f"cassandra {number}": one.address for number, one in enumerate(cassandra.nodes, 1)}
            servers |= {f"etcd {number}": address for number, address in enumerate(etcd.endpoints, 1)}
            for name, address in (servers | daemons.addresses).items() if with_links else ():
                await links.link(name, address)
            for address in daemons.addresses.values():
                clocks.make(address)
            say(f"starting Cassandra and etcd, with {nodes} {'node' if nodes == 1 else 'nodes'} each")
            async with etcd, cassandra:
                say(f"starting {', '.join(daemons.services.processes)}")
                async with daemons, ControlClient(daemons.address, patience=PATIENCE) as client:
                    yield Cluster(etcd, cassandra, daemons, links, clocks, client, mounted)
