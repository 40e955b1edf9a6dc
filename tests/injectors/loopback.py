"""A small cluster over loopback gRPC whose workers judge duplicates for real, and fail on request.

Master and workers are this module's; the authority is the real one on a memory store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import grpc

from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shard import AuthorityShard
from millwheel.client.injector.ids import IdKind, IdScope
from millwheel.client.injector.messages import SendBatch
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1 import catalog_pb2, common_pb2, control_pb2, delivery_pb2, injection_pb2, topology_pb2
from millwheel.rpc.v1.control_pb2_grpc import RoutingServiceServicer, add_RoutingServiceServicer_to_server
from millwheel.rpc.v1.delivery_pb2_grpc import DeliveryServiceServicer, add_DeliveryServiceServicer_to_server
from millwheel.rpc.v1.injection_pb2_grpc import InjectionServiceServicer, add_InjectionServiceServicer_to_server
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server
from millwheel.worker.dedup import Sender
from tests.faulty_store import FaultyStore
from tests.injectors.receivers import ACKED, NOT_OWNER, Answer, Consumer

__all__ = ["Authority", "Cluster", "Worker", "cluster"]


_Answers = asyncio.Queue[delivery_pb2.DeliverResponse]
"""What goes back by one stream."""


def _as_send(request: delivery_pb2.DeliverRequest, address: str, token: int) -> SendBatch:
    kind = request.WhichOneof("ids")
    ids: list[Any]
    if kind == "positions":
        scope, ids = IdScope(IdKind.POSITION, request.positions.sequence), list(request.positions.positions)
    else:
        assert kind == "opaque"
        blob = request.opaque.ids
        scope, ids = IdScope(IdKind.OPAQUE), [blob[at : at + 16] for at in range(0, len(blob), 16)]
    return SendBatch(
        address,
        token,
        request.consumer,
        request.journal,
        scope,
        list(request.keys),
        list(request.values),
        list(request.timestamps_us),
        ids,
        request.sender.watermark_us,
        request.positions.mark,
        list(request.positions.unacked),
    )


class Authority(WatermarkServicer):
    """The real one, which may be made to wait before it hears, accepts or broadcasts anything, or to start again."""

    def __init__(self, store: FaultyStore, shell: AuthorityShard) -> None:
        super().__init__(shell)
        self.shell = shell
        self.store = store
        self._sequencer = 1
        self.hearing = asyncio.Event()
        self.hearing.set()
        self.accepting = asyncio.Event()
        self.accepting.set()
        self.broadcasting = asyncio.Event()
        self.broadcasting.set()

    async def WatchWatermarks(self, request: Any, context: Any) -> Any:
        """When it may."""
        async for response in super().WatchWatermarks(request, context):
            await self.broadcasting.wait()
            yield response

    async def start_again(self) -> None:
        """Die, and be there again with what is in the journal."""
        await self.shell.close()
        self._sequencer += 1
        self.shell = self._shards = await AuthorityShard.open(self.store, "authority.0", self._sequencer)

    async def close(self) -> None:
        """The end."""
        await self.shell.close()

    async def AcceptSequencer(self, request: Any, context: Any) -> Any:
        """When it may."""
        await self.accepting.wait()
        return await super().AcceptSequencer(request, context)

    async def Report(self, request_iterator: Any, context: Any) -> Any:
        """When it may: until then reports are on their way."""

        async def received() -> AsyncIterator[Any]:
            async for request in request_iterator:
                await self.hearing.wait()
                yield request

        async for response in super().Report(received(), context):
            yield response


class Worker(DeliveryServiceServicer):
    """Takes, refuses and commits at random; ``calm`` ends that."""

    def __init__(self, consumers: dict[str, Consumer], chance: Random) -> None:
        self.consumers = consumers
        self.chance = chance
        self.calm = False
        self.address = ""
        self.batches: list[tuple[int, float]] = []
        """Size and time of each batch."""
        self._server: grpc.aio.Server | None = None
        self._askers: dict[int, tuple[_Answers, int]] = {}
        """By a delivery's number here: the stream that it came by, and its token there; each sender has its own."""
        self._committer: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen, where it listened before."""
        self._server = create_server()
        add_DeliveryServiceServicer_to_server(self, self._server)
        port = int(self.address.rpartition(":")[2]) if self.address else 0
        self.address = bind(self._server, port)
        await self._server.start()
        self._committer = asyncio.create_task(self._commit_for_ever())

    async def die(self) -> None:
        """Hang up on everybody; what was not committed is forgotten."""
        assert self._server is not None
        assert self._committer is not None
        self._committer.cancel()
        await asyncio.gather(self._committer, return_exceptions=True)
        await self._server.stop(None)
        for consumer in self.consumers.values():
            for journal, owner in consumer.owners.items():
                if owner == self.address:
                    consumer.receivers[journal].crash()

    async def Deliver(
        self, request_iterator: AsyncIterator[delivery_pb2.DeliverRequest], context: Any
    ) -> AsyncIterator[delivery_pb2.DeliverResponse]:
        """As a worker does."""
        answers: _Answers = asyncio.Queue()
        reader = asyncio.create_task(self._read(request_iterator, answers))
        try:
            while True:
                yield await answers.get()
        finally:
            reader.cancel()

    async def _read(self, requests: AsyncIterator[delivery_pb2.DeliverRequest], answers: _Answers) -> None:
        async for request in requests:
            self.batches.append((len(request.keys), asyncio.get_running_loop().time()))
            number = len(self._askers)
            self._askers[number] = answers, request.token
            self._tell(self._take(request, number))

    def _take(self, request: delivery_pb2.DeliverRequest, number: int) -> list[Answer]:
        consumer = self.consumers[request.consumer]
        if consumer.owners.get(request.journal) != self.address:
            return [(number, NOT_OWNER, [])]
        refuse = 0 if self.calm else self.chance.choice([0, 0, 0, 3, 1_000])
        sender = Sender(
            request.sender.name,
            request.sender.sequencer,
            None,
            request.sender.group,
            request.sender.watermark_us,
        )
        return consumer.receivers[request.journal].deliver(_as_send(request, self.address, number), sender, refuse)

    async def _commit_for_ever(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            for consumer in self.consumers.values():
                for journal, receiver in list(consumer.receivers.items()):
                    if consumer.owners[journal] == self.address and not consumer.hold:
                        most = 1_000_000 if self.calm else self.chance.randint(1, 400)
                        self._tell([answer for _, answer in receiver.commit(most)])

    def _tell(self, answers: list[Answer]) -> None:
        # By the stream that it came by, and no other: if that broke, the answer is nobody's by now.
        last: dict[int, delivery_pb2.DeliverResponse] = {}
        for number, outcome, indexes in answers:
            stream, token = self._askers[number]
            response = delivery_pb2.DeliverResponse(token=token, outcome=outcome, indexes=indexes)
            before = last.get(id(stream))
            if before is not None and before.outcome == outcome == ACKED and not before.indexes and not indexes:
                before.also.append(token)
                continue
            last[id(stream)] = response
            stream.put_nowait(response)


class Cluster(RoutingServiceServicer, InjectionServiceServicer):
    """The master's part, for one stream "s" of MessagePack maps, keyed by their field "k"."""

    def __init__(self, consumers: dict[str, Consumer], workers: list[Worker]) -> None:
        self.consumers = consumers
        self.workers = workers
        self.address = ""
        self.authority = ""
        self.stream = topology_pb2.StreamSpec(name="s", format=topology_pb2.VALUE_FORMAT_MSGPACK, injected=True)
        self.revision = 1
        self.sequencer = 0
        self.watermarks: Authority
        self.mute = False
        """Tell no routing."""
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen, where it listened before."""
        self._server = create_server()
        add_RoutingServiceServicer_to_server(self, self._server)
        add_InjectionServiceServicer_to_server(self, self._server)
        add_WatermarkServiceServicer_to_server(self.watermarks, self._server)
        port = int(self.address.rpartition(":")[2]) if self.address else 0
        self.address = self.authority = bind(self._server, port)
        await self._server.start()

    async def leave(self) -> None:
        """Master and authority are not to be reached any more."""
        assert self._server is not None
        await self._server.stop(None)

    def changed(self) -> None:
        """Tell the routing as it is now."""
        self.revision += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def OpenInjector(
        self, request: injection_pb2.OpenInjectorRequest, context: Any
    ) -> injection_pb2.OpenInjectorResponse:
        """A sequencer."""
        self.sequencer += 1
        return injection_pb2.OpenInjectorResponse(
            sequencer=self.sequencer, watermark_us=-(1 << 63), authority=common_pb2.Endpoint(address=self.authority)
        )

    async def WatchRouting(
        self, request: control_pb2.WatchRoutingRequest, context: Any
    ) -> AsyncIterator[control_pb2.WatchRoutingResponse]:
        """The routing, and again after every change."""
        while True:
            changed = self._changed
            if not self.mute:
                yield self._routing()
            await changed.wait()

    def _routing(self) -> control_pb2.WatchRoutingResponse:
        return control_pb2.WatchRoutingResponse(
            revision=self.revision,
            stream=self.stream,
            authority=common_pb2.Endpoint(address=self.authority),
            consumers=[_route(consumer) for consumer in self.consumers.values()],
        )


def _route(consumer: Consumer) -> control_pb2.ConsumerRoute:
    intervals = [
        catalog_pb2.IntervalRecord(
            keys=common_pb2.KeyInterval(start=receiver.keys.start, end=receiver.keys.end),
            journal=journal,
            sequencer=1 + consumer.tenures.get(journal, 0),
            owner=common_pb2.Endpoint(address=consumer.owners[journal]) if consumer.owners[journal] else None,
        )
        for journal, receiver in consumer.receivers.items()
    ]
    return control_pb2.ConsumerRoute(
        incarnation=IncarnationId(consumer.name),
        topology="t",
        computation=consumer.name,
        key=topology_pb2.KeySpec(fields=["k"]),
        intervals=catalog_pb2.IntervalMapRecord(computation=consumer.name, intervals=intervals),
    )


@asynccontextmanager
async def cluster(seed: int, workers: int = 2) -> AsyncIterator[Cluster]:
    """Two consumers, some workers, a master and an authority."""
    consumers: dict[str, Consumer] = {}
    started = [Worker(consumers, Random(seed + number)) for number in range(workers)]  # type: ignore[abstract]
    for worker in started:
        await worker.start()
    consumers["x"] = Consumer.new("x", started[0].address)
    consumers["y"] = Consumer.new("y", started[-1].address)
    store = FaultyStore()
    await store.create_journal("authority.0")
    authority = await AuthorityShard.open(store, "authority.0", 1)
    made = Cluster(consumers, started)  # type: ignore[abstract]  # the calls that injectors do not make
    made.watermarks = Authority(store, authority)
    await made.start()
    try:
        yield made
    finally:
        await made.leave()
        await made.watermarks.close()
        for worker in started:
            await worker.die()
