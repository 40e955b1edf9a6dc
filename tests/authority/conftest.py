"""A real shard on a memory store, served on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from prometheus_client import CollectorRegistry

from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shard import AuthorityShard, ShardSettings
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server
from millwheel.store.contract import StateStore
from millwheel.store.memory import MemoryStore
from tests.authority.shard import JOURNAL
from tests.serving import LoopbackServer


@dataclass
class Served:
    """A shard that processes come and go for. ``address`` is where the newest is."""

    store: StateStore
    shell: AuthorityShard = field(init=False)
    registry: CollectorRegistry = field(init=False)
    address: str = ""
    sequencer: int = 0
    servers: list[LoopbackServer] = field(default_factory=list)
    shells: list[AuthorityShard] = field(default_factory=list)

    async def start(self, settings: ShardSettings | None = None) -> AuthorityShard:
        """A new process takes the shard, on a port of its own; older ones are left running."""
        self.sequencer += 1
        self.registry = CollectorRegistry()
        self.shell = await AuthorityShard.open(
            self.store, JOURNAL, self.sequencer, registry=self.registry, settings=settings
        )
        self.shells.append(self.shell)
        self.servers.append(
            LoopbackServer(partial(add_WatermarkServiceServicer_to_server, WatermarkServicer(self.shell)))
        )
        await self.servers[-1].start()
        self.address = self.servers[-1].address
        return self.shell

    async def kill(self) -> None:
        """End the newest process."""
        await self.servers.pop().stop()
        await self.shells.pop().close()

    async def where(self) -> str:
        """The newest process's address."""
        return self.address

    async def close(self) -> None:
        for server in self.servers:
            await server.stop()
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
