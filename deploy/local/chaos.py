"""Faults during a run: SIGKILL to a worker, the leading master, an authority shard and a member of etcd, in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from deploy.local.cluster import LocalCluster
from millwheel.client.control import ControlClient
from millwheel.coordination.etcd import EtcdCoordinator, EtcdSettings
from millwheel.model.catalog_keys import authority_key
from millwheel.rpc.v1.catalog_pb2 import AuthorityRecord

__all__ = ["Chaos"]

_OUTAGE: Final = 3.0
"""Seconds until etcd's member is restarted."""


class Chaos:
    """Kills one process after another, each at a given progress of the job."""

    def __init__(self, cluster: LocalCluster, say: Callable[[str], None]) -> None:
        self.killed: list[str] = []
        self._cluster = cluster
        self._say = say
        self._accidents: tuple[tuple[float, Callable[[], Awaitable[str]]], ...] = (
            (0.1, self._worker),
            (0.3, self._leading_master),
            (0.5, self._authority_shard),
            (0.7, self._etcd_member),
        )

    async def run(self, progress: Callable[[], float]) -> None:
        """Run all faults. ``progress`` returns the job's progress, from 0 to 1."""
        for at, accident in self._accidents:
            while progress() < at:  # noqa: ASYNC110 a job of other processes is looked at
                await asyncio.sleep(0.1)
            killed = await accident()
            self.killed.append(killed)
            self._say(f"chaos: SIGKILL to {killed}")

    async def _worker(self) -> str:
        return self._kill("worker 1")

    async def _leading_master(self) -> str:
        async with ControlClient(self._cluster.address, patience=30.0) as client:
            await client.list_topologies()
            number = self._cluster.daemons.masters.index(client.address) + 1
        return self._kill(f"master {number}") + ", which led"

    async def _authority_shard(self) -> str:
        """The process that serves shard 0."""
        number = self._cluster.daemons.authorities.index(await self._server_of_shard(0)) + 1
        return self._kill(f"authority {number}") + ", which served a shard"

    async def _server_of_shard(self, shard: int) -> str:
        coordinator = EtcdCoordinator(EtcdSettings(self._cluster.etcd.endpoints, self._cluster.prefix))
        try:
            while (entry := await coordinator.get(authority_key(shard))) is None:  # noqa: ASYNC110 it comes by itself
                await asyncio.sleep(0.2)
            return str(AuthorityRecord.FromString(entry.value).endpoint.worker_id)
        finally:
            await coordinator.close()

    async def _etcd_member(self) -> str:
        etcd = self._cluster.etcd
        number = len(etcd.members) - 1
        etcd.kill(number)
        loop = asyncio.get_running_loop()
        loop.call_later(_OUTAGE, etcd.members[number].start)
        return f"member {number + 1} of etcd, of {len(etcd.members)}"

    def _kill(self, name: str) -> str:
        self._cluster.daemons.kill(name)
        return name
