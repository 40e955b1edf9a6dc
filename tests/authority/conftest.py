"""A real shard on a memory store, served on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import grpc
import pytest
from prometheus_client import CollectorRegistry

from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shard import AuthorityShard, ShardSettings
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server
from millwheel.store.contract import StateStore
from millwheel.store.memory import MemoryStore
from tests.authority.shard import JOURNAL


@dataclass
class Served:
    """A shard that processes come and go for. ``address`` is where the newest is."""

    store: StateStore
    shell: AuthorityShard = field(init=False)
    registry: CollectorRegistry = field(init=False)
    address: str = ""
    sequencer: int = 0
    servers: list[grpc.aio.Server] = field(default_factory=list)
    shells: list[AuthorityShard] = field(default_factory=list)

    async def start(self, settings: ShardSettings | None = None) -> AuthorityShard:
        """A new process takes the shard, on a port of its own; older ones are left running."""
        self.sequencer += 1
        self.registry = CollectorRegistry()
        self.shell = await AuthorityShard.open(
            self.store, JOURNAL, self.sequencer, registry=self.registry, settings=settings
        )
        self.shells.append(self.shell)
        server = create_server()
        add_WatermarkServiceServicer_to_server(WatermarkServicer(self.shell), server)
        self.address = bind(server)
        await server.start()
        self.servers.append(server)
        return self.shell

    async def kill(self) -> None:
        """End the newest process."""
        await self.servers.pop().stop(None)
        await self.shells.pop().close()

    async def where(self) -> str:
        """The newest process's address."""
        return self.address

    async def close(self) -> None:
        for server in self.servers:
            await server.stop(None)
        for shell in self.shells:
            await shell.close()


Serve = Callable[[StateStore | None], Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a shard on a store, by default an empty memory store."""
    made: list[Served] = []

    async def start(store: StateStore | None = None, settings: ShardSettings | None = None) -> Served:
        if store is None:
            store = MemoryStore()
            await store.create_journal(JOURNAL)
        served = Served(store)
        made.append(served)
        await served.start(settings)
        return served

    yield start
    for served in made:
        await served.close()
