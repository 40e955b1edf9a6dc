"""Workers as a master sees them: they tell loads, and hear of handovers. The real ones may not be imported here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from millwheel.coordination.contract import Coordinator
from millwheel.model.catalog import Catalog
from millwheel.rpc.v1 import handover_pb2, handover_pb2_grpc, inspection_pb2, inspection_pb2_grpc
from tests.serving import serving

from .replica import register_worker


class Owner(inspection_pb2_grpc.InspectionServiceServicer, handover_pb2_grpc.HandoverServiceServicer):
    """Tells of whatever it owns by the coordinator's word that each key of ``sample`` has that share of ``busy``."""

    def __init__(self, coordinator: Coordinator, worker: str) -> None:
        self.worker = worker
        self.independent = False
        self.busy = 0.1
        self.costs: dict[str, float] = {}
        """What intervals cost, by journal, where it is not ``busy``."""
        self.sample: dict[bytes, float] = {}
        self.received: list[handover_pb2.PrepareReleaseRequest | handover_pb2.PrepareOpenRequest] = []
        self.hold = asyncio.Event()
        """Hints are answered once it is set."""
        self.hold.set()
        self._coordinator = coordinator

    async def GetWorkerLoad(
        self, request: inspection_pb2.GetWorkerLoadRequest, context: object
    ) -> inspection_pb2.GetWorkerLoadResponse:
        known = Catalog()
        known.load(await self._coordinator.list(""))
        response = inspection_pb2.GetWorkerLoadResponse(cpu=0.2, resident_bytes=1 << 20, memory_limit_bytes=1 << 30)
        for owned in known.owned_by(self.worker):
            load = response.intervals.add(
                computation=owned.incarnation,
                journal=owned.interval.journal,
                sequencer=owned.interval.sequencer,
                independent=self.independent or not owned.interval.parents,
                busy=self.costs.get(owned.interval.journal, self.busy),
                records_per_second=1_234.5,
            )
            for key, share in sorted(self.sample.items()):
                load.sample.add(key=key, share=share)
        return response

    async def PrepareRelease(
        self, request: handover_pb2.PrepareReleaseRequest, context: object
    ) -> handover_pb2.PrepareReleaseResponse:
        self.received.append(request)
        await self.hold.wait()
        return handover_pb2.PrepareReleaseResponse()

    async def PrepareOpen(
        self, request: handover_pb2.PrepareOpenRequest, context: object
    ) -> handover_pb2.PrepareOpenResponse:
        self.received.append(request)
        await self.hold.wait()
        return handover_pb2.PrepareOpenResponse()


@asynccontextmanager
async def owner(coordinator: Coordinator, worker: str) -> AsyncIterator[Owner]:
    """A registered worker behind real gRPC on loopback."""
    servicer = Owner(coordinator, worker)  # type: ignore[abstract]
    inspecting = partial(inspection_pb2_grpc.add_InspectionServiceServicer_to_server, servicer)
    async with serving(
        inspecting, partial(handover_pb2_grpc.add_HandoverServiceServicer_to_server, servicer)
    ) as address:
        await register_worker(coordinator, worker, address)
        yield servicer
