"""A whole cluster on loopback: Cassandra, etcd, and MillWheel's daemons, each an operating-system process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.local.cassandra import CassandraCluster
from deploy.local.daemons import Daemons
from deploy.local.etcd import EtcdCluster

__all__ = ["LocalCluster", "settings_of"]


def settings_of(etcd: EtcdCluster, cassandra: CassandraCluster, keyspace: str = "millwheel", prefix: str = "") -> str:
    """[coordinator] and [store] for daemons on these."""
    replicas = len(cassandra.nodes)
    members = ", ".join(f'"{one}"' for one in etcd.endpoints)
    nodes = ", ".join(f'"{one}"' for one in cassandra.contact_points)
    secrets = f'username = "{cassandra.username}"\npassword = "{cassandra.password}"\n' if cassandra.username else ""
    return (
        f'[coordinator]\nendpoints = [{members}]\nprefix = "{prefix or keyspace}/"\n\n'
        f'[store]\ncontact_points = [{nodes}]\nkeyspace = "{keyspace}"\nreplication = "{replicas}"\n{secrets}'
    )


class LocalCluster:
    """Started by ``async with``; everything of it ends with the block, or with this process, however that ends."""

    def __init__(self, place: Path, say: Callable[[str], None], *, nodes: int = 1, members: int = 1) -> None:
        """``place``: a folder that is its own; ``nodes`` of Cassandra and ``members`` of etcd."""
        self.place = place
        self.etcd = EtcdCluster(place / "etcd", members)
        self.cassandra = CassandraCluster(place / "cassandra", nodes)
        self.daemons = Daemons(place, settings_of(self.etcd, self.cassandra), say)
        self._say = say
        self._stack = AsyncExitStack()

    @property
    def address(self) -> str:
        """The masters, for clients."""
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
