"""WatermarkService at a master: explains a watermark by a call to the shard that keeps it (7.2).

It serves people and their tools. Owners and injectors call the shards directly.
"""

from __future__ import annotations

from typing import Any, Final

import grpc

from millwheel.master.replica import MasterReplica
from millwheel.rpc.errors import answering, calling
from millwheel.rpc.failures import authority_is_away
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.v1 import watermark_pb2_grpc

__all__ = ["WatermarkProxy"]

_DEADLINE_SECONDS: Final = 5.0

Context = grpc.aio.ServicerContext[Any, Any]


class WatermarkProxy(watermark_pb2_grpc.WatermarkServiceServicer):
    """Answers ExplainWatermark. Other calls belong to the shards, and are UNIMPLEMENTED here."""

    def __init__(self, replica: MasterReplica) -> None:
        self._replica = replica

    async def ExplainWatermark(
        self, request: pb.ExplainWatermarkRequest, context: Context
    ) -> pb.ExplainWatermarkResponse:
        """Return the answer of the group's shard; UNAVAILABLE while no process serves it."""

        async def work() -> pb.ExplainWatermarkResponse:
            catalog = (await self._replica.term()).catalog
            endpoint = catalog.authority_of(request.group)
            if endpoint is None:
                raise authority_is_away(f"{request.group!r} (shard {catalog.shard_of(request.group)})")
            stub = watermark_pb2_grpc.WatermarkServiceStub(self._replica.observer.channel(endpoint.address))
            async with calling(endpoint.address):
                return await stub.ExplainWatermark(request, timeout=_DEADLINE_SECONDS)

        return await answering(context, work)
