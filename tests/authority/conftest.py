"""A real shard on a memory store, served on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import grpc
import pytest
from prometheus_client import CollectorRegistry

from millwheel.authority.catalog_members import CatalogMembers
from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shard import AuthorityShard, ShardSettings
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.failures import FailureCode
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceStub, add_WatermarkServiceServicer_to_server
from millwheel.store.memory import MemoryStore
from tests.authority.shard import JOURNAL
from tests.coordination.memory import MemoryCoordinator
from tests.serving import LoopbackServer


class Served:
    """A shard that processes come and go for. ``address`` is where the newest is."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.sequencer = 0
        self.servers: list[LoopbackServer] = []
        self.open_shards: list[AuthorityShard] = []
        self.coordinator: MemoryCoordinator | None = None
        """The catalog. None: each member that announces itself exists."""

    async def start(self, settings: ShardSettings | None = None) -> None:
        """A new process takes the shard, on a port of its own; older ones are left running."""
        self.sequencer += 1
        self.registry = CollectorRegistry()
        self.open_shard = await AuthorityShard.open(
            self.store, JOURNAL, self.sequencer, registry=self.registry, settings=settings
        )
        self.open_shards.append(self.open_shard)
        checks = () if self.coordinator is None else (CatalogMembers(self.coordinator).check,)
        service = partial(add_WatermarkServiceServicer_to_server, WatermarkServicer(self.open_shard, *checks))
        self.servers.append(LoopbackServer(service))
        await self.servers[-1].start()
        self.address = self.servers[-1].address

    async def kill(self) -> None:
        """End the newest process."""
        await self.servers.pop().stop()
        await self.open_shards.pop().close()

    async def check_refused(self, request: pb.ReportRequest, where: str, why: str) -> None:
        """Report once. Check that the request is refused for one field."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            call = WatermarkServiceStub(channel).Report()  # type: ignore[call-arg]
            await call.write(request)
            assert await call.read() == pb.ReportResponse(reads_columns=True)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
        error = from_rpc_error(caught.value)
        assert error.code is FailureCode.INVALID_ARGUMENT
        assert [problem.where for problem in error.problems] == [where]
        assert why in error.problems[0].message

    async def where(self) -> str:
        """The newest process's address."""
        return self.address


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """One process serves a shard that is new."""
    made = Served()
    await made.store.create_journal(JOURNAL)
    await made.start()
    yield made
    while made.servers:
        await made.kill()
