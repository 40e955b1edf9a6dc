"""A whole cluster on loopback: Cassandra, etcd and MillWheel's daemons, each in an operating-system process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from deploy.local.cassandra import CassandraCluster
from deploy.local.daemons import Daemons
from deploy.local.etcd import EtcdCluster
from millwheel.coordination.etcd import EtcdCoordinator, EtcdSettings
from millwheel.model.catalog import Catalog

__all__ = ["LocalCluster", "catalog_of", "settings_of"]

_NAME: Final = "millwheel"


def settings_of(etcd: EtcdCluster, cassandra: CassandraCluster, name: str = "millwheel") -> str:
    """[coordinator] and [store] for daemons on these components.

    ``name`` is the keyspace, and the prefix of every key.
    """
    replicas = len(cassandra.nodes)
    members = ", ".join(f'"{one}"' for one in etcd.endpoints)
    nodes = ", ".join(f'"{one}"' for one in cassandra.contact_points)
    secrets = f'username = "{cassandra.username}"\npassword = "{cassandra.password}"\n' if cassandra.username else ""
    return (
        f'[coordinator]\nendpoints = [{members}]\nprefix = "{name}/"\n\n'
        f'[store]\ncontact_points = [{nodes}]\nkeyspace = "{name}"\nreplication = "{replicas}"\n{secrets}'
    )


async def catalog_of(etcd: EtcdCluster, name: str = _NAME) -> Catalog:
    """The present records in the coordinator, for the cluster whose keys have the prefix ``name``."""
    coordinator = EtcdCoordinator(EtcdSettings(etcd.endpoints, f"{name}/"))
    try:
        known = Catalog()
        known.load(await coordinator.list(""))
        return known
    finally:
        await coordinator.close()


class LocalCluster:
    """A cluster, started by ``async with``.

    All its processes end with the block, or with this process even if it is killed.
    """

    def __init__(self, place: Path, say: Callable[[str], None], *, nodes: int = 1, members: int = 1) -> None:
        """``place``: a folder for this cluster only. ``nodes`` of Cassandra, ``members`` of etcd."""
        self.place = place
        self.etcd = EtcdCluster(place / "etcd", members)
        self.cassandra = CassandraCluster(place / "cassandra", nodes)
        self.daemons = Daemons(place, settings_of(self.etcd, self.cassandra, _NAME), say)
        self.prefix = f"{_NAME}/"
        """The prefix of every key in etcd."""
        self._say = say
        self._stack = AsyncExitStack()

    @property
    def address(self) -> str:
        """The masters' address, for clients."""
        return self.daemons.address

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            count = len(self.cassandra.nodes)
            self._say(f"starting Cassandra ({count} {'node' if count == 1 else 'nodes'}) and etcd")
            await stack.enter_async_context(self.etcd)
            await stack.enter_async_context(self.cassandra)
            self._say(f"starting {', '.join(self.daemons.services.processes)}")
            await stack.enter_async_context(self.daemons)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
