"""A small cluster over loopback gRPC. Its workers do the real duplicate check, and fail on request.

This module has doubles of the master and of workers. The authority is the real one, on a memory store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random
from typing import Any, cast

from millwheel.model.catalog import Catalog
from millwheel.model.deliveries import Delivery
from millwheel.rpc.v1 import common_pb2, control_pb2, injection_pb2, topology_pb2
from millwheel.rpc.v1.control_pb2_grpc import RoutingServiceServicer, add_RoutingServiceServicer_to_server
from millwheel.rpc.v1.delivery_pb2_grpc import add_DeliveryServiceServicer_to_server
from millwheel.rpc.v1.injection_pb2_grpc import InjectionServiceServicer, add_InjectionServiceServicer_to_server
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server
from millwheel.worker.process.delivery_service import DeliveryService
from millwheel.worker.process.quotas import RecordQuotas
from tests.authority.gated import GatedAuthority, gated_authority
from tests.injectors.receivers import Answer, Consumer
from tests.serving import LoopbackServer
from tests.worker.dedup.receivers import Receiver


class Worker:
    """Accepts, refuses and commits at random, until ``calm`` is set. Its service knows this one interval."""

    def __init__(self, consumers: dict[str, Consumer], chance: Random) -> None:
        self.consumers = consumers
        self.chance = chance
        self.calm = False
        self.batches: list[int] = []
        """The size of each batch."""
        self.host = self
        self.known_senders: dict[str, int] = {}
        service = DeliveryService(cast("Any", self), cast("Any", None), RecordQuotas(Catalog()))
        self._server = LoopbackServer(partial(add_DeliveryServiceServicer_to_server, service))

    @property
    def address(self) -> str:
        return self._server.address

    async def start(self) -> None:
        """Listen, at the same address as before."""
        await self._server.start()
        self._committer = asyncio.create_task(self._commit_for_ever())

    async def die(self) -> None:
        """Close all connections, and lose what was not committed."""
        self._committer.cancel()
        await asyncio.gather(self._committer, return_exceptions=True)
        await self._server.stop()
        for _, receiver in self._owned():
            receiver.crash()

    def _owned(self) -> list[tuple[Consumer, Receiver]]:
        pairs = [(consumer, receiver) for consumer in self.consumers.values() for receiver in consumer.all]
        return [(consumer, one) for consumer, one in pairs if consumer.owners[one.journal] == self.address]

    def get(self, journal: str) -> Worker | None:
        """Return this worker if it owns the journal. The delivery service calls this."""
        return self if any(receiver.journal == journal for _, receiver in self._owned()) else None

    def post(self, delivery: Delivery) -> None:
        """Take a batch from the delivery service."""
        self.batches.append(len(delivery.keys))
        refuse = 0 if self.calm else self.chance.choice([0, 0, 0, 3, 1_000])
        _reply(self.consumers[delivery.consumer].receive(delivery, refuse))

    async def _commit_for_ever(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            for consumer, receiver in self._owned():
                if not consumer.hold:
                    most = 1_000_000 if self.calm else self.chance.randint(1, 400)
                    _reply(consumer.commit_some(receiver.journal, most))


def _reply(answers: list[Answer]) -> None:
    """Answer on the call that the batch came by. If that call has ended, the answer is lost."""
    for delivery, outcome, indexes in answers:
        delivery.channel.reply(delivery.token, outcome, indexes, "")


class Cluster(RoutingServiceServicer, InjectionServiceServicer):
    """A double of the master, for one stream "s" of MessagePack maps, keyed by their field "k"."""

    def __init__(self, consumers: dict[str, Consumer], workers: list[Worker], watermarks: GatedAuthority) -> None:
        self.consumers = consumers
        self.workers = workers
        self.stream = topology_pb2.StreamSpec(name="s", format=topology_pb2.VALUE_FORMAT_MSGPACK, injected=True)
        self.authority = ""
        """The authority's address that injectors get."""
        self.id_stream = ""
        """The name within which injectors hash ids. Empty: that of the stream."""
        self.revision = 1
        self.sequencer = 0
        self.watermarks = watermarks
        self.mute = False
        """Publish no routing."""
        self._changed = asyncio.Event()
        self.server = LoopbackServer(
            partial(add_RoutingServiceServicer_to_server, self),
            partial(add_InjectionServiceServicer_to_server, self),
            partial(add_WatermarkServiceServicer_to_server, watermarks),
        )
        """The addresses of the master and the authority."""

    @property
    def address(self) -> str:
        return self.server.address

    def changed(self) -> None:
        """Publish the current routing."""
        self.revision += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def OpenInjector(self, request: Any, context: Any) -> Any:
        """Register an injector; the answer has its sequencer."""
        self.sequencer += 1
        return injection_pb2.OpenInjectorResponse(
            sequencer=self.sequencer, watermark_us=-(1 << 63), authority=common_pb2.Endpoint(address=self.authority)
        )

    async def WatchRouting(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Send the routing now and after every change."""
        while True:
            changed = self._changed
            if not self.mute:
                yield control_pb2.WatchRoutingResponse(
                    revision=self.revision,
                    stream=self.stream,
                    id_stream=self.id_stream,
                    authority=common_pb2.Endpoint(address=self.authority),
                    consumers=[consumer.route() for consumer in self.consumers.values()],
                )
            await changed.wait()


@asynccontextmanager
async def cluster(seed: int, workers: int = 2) -> AsyncIterator[Cluster]:
    """Two consumers, some workers, a master and an authority."""
    consumers: dict[str, Consumer] = {}
    started = [Worker(consumers, Random(seed + number)) for number in range(workers)]
    async with gated_authority() as watermarks, AsyncExitStack() as ends:
        for worker in started:
            await worker.start()
            ends.push_async_callback(worker.die)
        consumers.update(x=Consumer("x", started[0].address), y=Consumer("y", started[-1].address))
        made = Cluster(consumers, started, watermarks)  # type: ignore[abstract]  # the calls that injectors do not make
        made.authority = await ends.enter_async_context(made.server)
        yield made
