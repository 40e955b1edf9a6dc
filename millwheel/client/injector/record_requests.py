"""Requests to workers about records: keys at a consumer, and conformance to the declared type (section 4.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc

from millwheel.client.injector.routing import ConsumerRouting
from millwheel.client.injector.unkeyed import WaitingSummary
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.key_failures import KEY_ASK_SECONDS, MAX_ASKED_WORKERS
from millwheel.rpc.v1 import common_pb2 as common
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1.delivery_pb2_grpc import DeliveryServiceStub

__all__ = ["RecordAsker"]


class RecordAsker:
    """Sends requests to the workers that own a consumer's intervals. Each of them has the consumer's code."""

    def __init__(self, stream: str, process: str) -> None:
        self._stream = stream
        self._process = process
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._last: dict[IncarnationId, str] = {}
        """By consumer: the worker that answered last. It gets the next request first, to see whether records wait."""

    async def ask(
        self, consumer: ConsumerRouting, encoded: Sequence[bytes], waiting: WaitingSummary | None = None
    ) -> wire.PrepareRecordsResponse | str:
        """Request the keys and problems of records at a consumer.

        Args:
            consumer: The consumer of the records.
            encoded: The encoded records.
            waiting: A summary of all records that wait for the consumer, if these records wait too. None if they may
                still be refused.

        Returns:
            The worker's answer, or a text that says why there is none.
        """
        addresses = list(dict.fromkeys(route.address for route in consumer.routes if route.address))
        addresses.sort(key=lambda address: address != self._last.get(consumer.incarnation))
        why = "no worker owns an interval of it: its topology is being opened, or is paused"
        request = wire.PrepareRecordsRequest(
            consumer=consumer.incarnation,
            stream=self._stream,
            values=encoded,
            waiting=waiting and common.WaitingRecords(process=self._process, oldest_us=waiting.oldest),
            last_waiting=waiting is not None and waiting.queues == 1,
        )
        for address in addresses[:MAX_ASKED_WORKERS]:
            try:
                stub: Any = DeliveryServiceStub(self._channel(address))
                answer: wire.PrepareRecordsResponse = await stub.PrepareRecords(request, timeout=KEY_ASK_SECONDS)
            except grpc.aio.AioRpcError as error:
                why = str(from_rpc_error(error, address))
                continue
            except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
                why = f"the connection to worker {address} was closed: {error}"
                continue
            if len(answer.keys) == len(encoded):
                self._last[consumer.incarnation] = address
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
