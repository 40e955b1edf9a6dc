"""A real master behind real gRPC on loopback. The coordinator and the store are in memory.

The master's peers are here too: a real shard of the authority, and a double of a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from millwheel.coordination.contract import Coordinator, Put
from millwheel.master.replica import MasterReplica
from millwheel.master.services import SERVICES, add_services
from millwheel.master.settings import MasterSettings
from millwheel.model.catalog import OwnedInterval
from millwheel.model.catalog_keys import authority_key, worker_key
from millwheel.rpc.server import add_health, bind, create_server
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import handover_pb2, handover_pb2_grpc, inspection_pb2, inspection_pb2_grpc, watermark_pb2_grpc
from millwheel.store.contract import StateStore
from tests.authority.gated import GatedAuthority, gated_authority
from tests.coordination.memory import read_catalog
from tests.serving import LoopbackServer


class Owner(inspection_pb2_grpc.InspectionServiceServicer, handover_pb2_grpc.HandoverServiceServicer):
    """Reports for each interval that it owns: each key of ``sample`` has that share of ``busy``."""

    def __init__(self, coordinator: Coordinator, worker: str) -> None:
        self.worker = worker
        self.independent = False
        self.queued = 0
        self.busy = 0.1
        self.costs: dict[str, float] = {}
        """The cost of intervals, by journal. The others cost ``busy``."""
        self.sample: dict[bytes, float] = {}
        self.absence = ""
        """Why it does not run its intervals."""
        self.received: list[handover_pb2.PrepareReleaseRequest | handover_pb2.PrepareOpenRequest] = []
        self.hold = asyncio.Event()
        """Answers to hints wait until it is set."""
        self.hold.set()
        self._coordinator = coordinator

    async def _owned(self) -> list[OwnedInterval]:
        return (await read_catalog(self._coordinator)).owned_by(self.worker)

    async def GetIntervalStatus(self, request: Any, context: object) -> Any:
        owned = [one.interval for one in await self._owned()]
        (sequencer,) = (one.sequencer for one in owned if one.journal == request.journal)
        return inspection_pb2.GetIntervalStatusResponse(
            journal=request.journal, sequencer=sequencer, commit=3, queued_records=self.queued
        )

    async def GetWorkerLoad(self, request: Any, context: object) -> Any:
        response = inspection_pb2.GetWorkerLoadResponse(cpu=0.2, resident_bytes=1 << 20, memory_limit_bytes=1 << 30)
        for owned in await self._owned():
            load = response.intervals.add(
                incarnation=owned.incarnation,
                journal=owned.interval.journal,
                sequencer=owned.interval.sequencer,
                independent=self.independent or not owned.interval.parents,
                busy=self.costs.get(owned.interval.journal, self.busy),
                records_per_second=1_234.5,
                absence=self.absence,
            )
            for key, share in sorted(self.sample.items()):
                load.sample.add(key=key, share=share)
        return response

    async def PrepareRelease(self, request: Any, context: object) -> Any:
        return await self._hinted(request, handover_pb2.PrepareReleaseResponse())

    async def PrepareOpen(self, request: Any, context: object) -> Any:
        return await self._hinted(request, handover_pb2.PrepareOpenResponse())

    async def _hinted(self, request: Any, response: Any) -> Any:
        self.received.append(request)
        await self.hold.wait()
        return response


@asynccontextmanager
async def owner(coordinator: Coordinator, worker: str) -> AsyncIterator[Owner]:
    """A registered worker behind real gRPC on loopback."""
    servicer = Owner(coordinator, worker)  # type: ignore[abstract]
    inspecting = partial(inspection_pb2_grpc.add_InspectionServiceServicer_to_server, servicer)
    preparing = partial(handover_pb2_grpc.add_HandoverServiceServicer_to_server, servicer)
    async with LoopbackServer(inspecting, preparing) as address:
        await register_worker(coordinator, worker, address)
        yield servicer


@asynccontextmanager
async def replica(
    coordinator: Coordinator, store: StateStore, settings: MasterSettings | None = None, ttl: float = 1.0
) -> AsyncIterator[tuple[str, MasterReplica]]:
    """A replica of the master: its address and its master."""
    server = create_server()
    address = bind(server)
    master = MasterReplica(coordinator, store, address, settings, ttl=ttl)
    add_services(server, master)
    await add_health(server, SERVICES)
    await server.start()
    running = asyncio.ensure_future(master.run())
    try:
        yield address, master
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop(0)


async def register_worker(coordinator: Coordinator, worker_id: str, address: str, lease: int = 0) -> None:
    """Register a worker, as it does when it starts."""
    record = catalog.WorkerRecord()
    record.endpoint.worker_id, record.endpoint.address = worker_id, address
    await coordinator.transact((), [Put(worker_key(worker_id), record.SerializeToString(), lease)])


async def register_authority(coordinator: Coordinator, address: str) -> None:
    """Register a shard of the authority, as it does when it starts."""
    record = catalog.AuthorityRecord(shard=0)
    record.endpoint.address = address
    await coordinator.transact((), [Put(authority_key(0), record.SerializeToString())])


@asynccontextmanager
async def authority(coordinator: Coordinator) -> AsyncIterator[GatedAuthority]:
    """A registered authority behind real gRPC on loopback."""
    async with (
        gated_authority() as servicer,
        LoopbackServer(partial(watermark_pb2_grpc.add_WatermarkServiceServicer_to_server, servicer)) as address,
    ):
        await register_authority(coordinator, address)
        yield servicer
