"""WatermarkService at a master: what holds a watermark, asked of the shard that knows (7.2).

For people and their tools; owners and injectors speak to the shards themselves.
"""

from __future__ import annotations

from typing import Any, Final

import grpc

from millwheel.master.shell import MasterShell
from millwheel.rpc.errors import answering, calling
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.v1 import watermark_pb2_grpc

__all__ = ["WatermarkProxy"]

_DEADLINE: Final = 5.0

Context = grpc.aio.ServicerContext[Any, Any]


class WatermarkProxy(watermark_pb2_grpc.WatermarkServiceServicer):
    """Answers ExplainWatermark; other calls belong to the shards, and are UNIMPLEMENTED here."""

    def __init__(self, shell: MasterShell) -> None:
        self._shell = shell

    async def ExplainWatermark(
        self, request: pb.ExplainWatermarkRequest, context: Context
    ) -> pb.ExplainWatermarkResponse:
        """As the computation's shard answers; UNAVAILABLE while nobody serves it."""

        async def work() -> pb.ExplainWatermarkResponse:
            catalog = (await self._shell.term()).catalog
            endpoint = catalog.authority_of(request.computation)
            if endpoint is None:
                raise RequestError(
                    FailureCode.UNAVAILABLE,
                    f"nobody serves authority shard {catalog.shard_of(request.computation)}, "
                    f"which keeps the low watermark of {request.computation!r}",
                    "another candidate takes it within its lease's time; see that `millwheel authority run` runs",
                    reason="AUTHORITY_AWAY",
                )
            stub = watermark_pb2_grpc.WatermarkServiceStub(self._shell.observer.channel(endpoint.address))
            async with calling(endpoint.address):
                return await stub.ExplainWatermark(request, timeout=_DEADLINE)

        return await answering(context, work)
