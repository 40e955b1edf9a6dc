"""Deliver calls in the raw, for what no client library would send."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from millwheel.client.control import ControlClient
from millwheel.rpc.channel import open_channel
from millwheel.rpc.deliveries import answered_tokens
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1 import delivery_pb2_grpc

__all__ = ["RawInjector"]


class RawInjector:
    """Sends requests to the one interval of a computation, as an injector process of one of its streams."""

    def __init__(self, address: str, stream: str, process: str, consumer: str, journal: str, sequencer: int) -> None:
        self.address = address
        self.stream = stream
        self.consumer = consumer
        self.journal = journal
        self.origin = f"injector/{stream}/{process}"
        self.sequencer = sequencer
        self._position = 0

    @classmethod
    async def open(cls, address: str, topology: str, computation: str, stream: str, process: str) -> RawInjector:
        """Announce the process, and look up the interval."""
        async with ControlClient(address) as control:
            opened = await control.open_injector(stream, process)
            found = await control.get_topology(topology)
        (record,) = [one for one in found.interval_maps if one.computation == computation and one.topology]
        incarnation = found.topology.incarnations[computation]
        return cls(address, stream, process, incarnation, record.intervals[0].journal, opened.sequencer)

    def request(self, keys: Sequence[bytes], values: Sequence[bytes], token: int = 1) -> wire.DeliverRequest:
        """A well-formed batch of new records at time 1; spoil it as you like."""
        request = wire.DeliverRequest(
            token=token,
            consumer=self.consumer,
            journal=self.journal,
            stream=self.stream,
            sender=wire.Sender(name=self.origin, sequencer=self.sequencer, computation=f"injector/{self.stream}"),
            keys=keys,
            values=values,
            timestamps_us=[1_000_000] * len(keys),
        )
        request.positions.sequence = f"{self.origin.removeprefix('injector/')}/0"
        request.positions.positions.extend(range(self._position, self._position + len(keys)))
        self._position += len(keys)
        return request

    async def deliver(self, *requests: wire.DeliverRequest) -> dict[int, wire.DeliverResponse]:
        """Send requests on one call; the last answer to each, by token."""

        async def outgoing() -> AsyncIterator[wire.DeliverRequest]:
            for request in requests:
                yield request

        answers: dict[int, wire.DeliverResponse] = {}
        async with open_channel(self.address) as channel:
            async for response in delivery_pb2_grpc.DeliveryServiceStub(channel).Deliver(outgoing()):
                answers |= dict.fromkeys(answered_tokens(response), response)
        return answers
