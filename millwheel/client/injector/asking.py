"""Asking a worker about records: their keys at a consumer, and whether they are of the declared type (section 4.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc

from millwheel.client.injector.routing import ConsumerRouting
from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1.delivery_pb2_grpc import DeliveryServiceStub

__all__ = ["RecordAsker"]

_DEADLINE_SECONDS: Final = 10.0
_MAX_WORKERS: Final = 3
"""How many workers are asked before the answer is that there is none."""


class RecordAsker:
    """Asks the workers that own a consumer's intervals; any of them has its code."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._last = ""
        """The worker that answered last."""

    async def ask(self, consumer: ConsumerRouting, encoded: Sequence[bytes]) -> wire.PrepareRecordsResponse | str:
        """What a worker answers, or why none does."""
        addresses = list(dict.fromkeys(route.address for route in consumer.routes if route.address))
        addresses.sort(key=lambda address: address != self._last)
        why = "no worker owns an interval of it: its topology is being opened, or is paused"
        request = wire.PrepareRecordsRequest(consumer=consumer.incarnation, stream=self._stream, values=encoded)
        for address in addresses[:_MAX_WORKERS]:
            try:
                stub: Any = DeliveryServiceStub(self._channel(address))
                answer: wire.PrepareRecordsResponse = await stub.PrepareRecords(request, timeout=_DEADLINE_SECONDS)
            except grpc.aio.AioRpcError as error:
                why = str(from_rpc_error(error, address))
                continue
            except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
                why = f"the connection to worker {address} was closed: {error}"
                continue
            if len(answer.keys) == len(encoded):
                self._last = address
                return answer
            why = f"worker {address} answered with {len(answer.keys)} keys for {len(encoded)} records"
        return why

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address)
        return channel

    async def close(self) -> None:
        """Close all connections."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close(None)
