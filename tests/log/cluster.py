"""Workers with one stream's log between them, over loopback gRPC: real hosts, service and store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.errors import answering
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1 import common_pb2 as common
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.rpc.v1.control_pb2_grpc import RoutingServiceServicer, add_RoutingServiceServicer_to_server
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.rpc.v1.subscription_pb2_grpc import add_SubscriptionServiceServicer_to_server
from millwheel.store.memory import MemoryStore
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.log import LogConfig, LogCore, LogSettings
from millwheel.worker.messages import AcceptSequencer, Delivery, Report, SendDelivery, SenderWatermarks
from millwheel.worker.shell.host import CoreHost, RunQueue, steady_now
from millwheel.worker.shell.log_service import LogService

__all__ = ["Cluster", "cluster_of"]

STREAM = "windows"
JOURNAL = "log.windows.1.j1"


class _World:
    """The authority and the network, of which a log needs little."""

    def __init__(self) -> None:
        self.reported: int = MIN_TIMESTAMP

    def send(self, host: CoreHost, send: SendDelivery) -> None:
        raise AssertionError("a log sends nothing")

    def report(self, report: Report) -> None:
        self.reported = max(self.reported, report.output)

    async def accept(self, request: AcceptSequencer) -> int:
        return self.reported

    async def sequence_lives(self, sequence: str) -> bool:
        return True

    def lost(self, host: CoreHost, reason: str) -> None:
        return


class _Answers:
    """Where the answer to one delivery goes."""

    def __init__(self) -> None:
        self.acked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def reply(self, token: int, outcome: DeliveryOutcome.ValueType, remaining: Sequence[int], message: str) -> None:
        if outcome == DeliveryOutcome.DELIVERY_OUTCOME_ACKED and not remaining and not self.acked.done():
            self.acked.set_result(None)


class _Worker:
    def __init__(self, owner: Callable[[_Worker, str], CoreHost | None]) -> None:
        self.service = LogService(lambda stream, log: owner(self, log) if stream == STREAM else None)
        self.server = create_server()
        add_SubscriptionServiceServicer_to_server(self.service, self.server)
        self.address = bind(self.server)


class Cluster(RoutingServiceServicer):
    """The log moves where ``move`` says; the routing service tells who owns it."""

    def __init__(self, settings: LogSettings) -> None:
        self.settings = settings
        self.store = MemoryStore()
        self.world = _World()
        self.queue = RunQueue(asyncio.get_running_loop())
        self.form = specs.VALUE_FORMAT_RAW
        self.incarnation = IncarnationId("log.windows.1")
        """Of the log that the routing service tells of."""
        self.served = ""
        """Of the log that the owner has."""
        self.workers = [_Worker(self._host_of), _Worker(self._host_of)]
        self.owner: _Worker | None = None
        self.host: CoreHost | None = None
        self.sequencer = 0
        self.position = 0
        self.server = create_server()
        add_RoutingServiceServicer_to_server(self, self.server)
        self.address = bind(self.server)

    def _host_of(self, worker: _Worker, incarnation: str) -> CoreHost | None:
        """As workers find it; ``incarnation`` may be newer than what this one has."""
        return self.host if worker is self.owner and incarnation in ("", self.served) else None

    async def WatchRouting(
        self, request: control.WatchRoutingRequest, context: Any
    ) -> AsyncIterator[control.WatchRoutingResponse]:
        response = control.WatchRoutingResponse(stream=specs.StreamSpec(name=STREAM, format=self.form))
        log = response.consumers.add(incarnation=self.incarnation, log=True)
        interval = log.intervals.intervals.add(journal=JOURNAL)
        if self.owner is not None:
            interval.owner.CopyFrom(common.Endpoint(worker_id="w", address=self.owner.address))
        yield response

    async def ListAuthorities(
        self, request: control.ListAuthoritiesRequest, context: Any
    ) -> control.ListAuthoritiesResponse:
        """There is none."""
        return control.ListAuthoritiesResponse()

    async def EnsureStreamLog(
        self, request: control.EnsureStreamLogRequest, context: Any
    ) -> control.EnsureStreamLogResponse:
        async def work() -> control.EnsureStreamLogResponse:
            if request.stream != STREAM:
                raise RequestError(FailureCode.NOT_FOUND, f"there is no stream {request.stream!r}", "list them")
            answer = control.EnsureStreamLogResponse(incarnation=self.incarnation, journal=JOURNAL)
            answer.stream.CopyFrom(specs.StreamSpec(name=STREAM, format=self.form))
            if self.owner is not None:
                answer.owner.CopyFrom(common.Endpoint(worker_id="w", address=self.owner.address))
            return answer

        return await answering(context, work)

    # What happens to the log.

    async def take(self, worker: int) -> None:
        """A worker takes the log, as its first owner or after ``leave``."""
        self.sequencer += 1
        owner, self.served = self.workers[worker], self.incarnation
        config = LogConfig(
            STREAM,
            self.incarnation,
            JOURNAL,
            self.sequencer,
            frozenset({"injector/windows"}),
            settings=self.settings,
        )
        core, perform = LogCore(config), owner.service.perform
        self.host = CoreHost(JOURNAL, core, self.store, self.world, self.queue, subscribers=perform, clock=steady_now)
        self.host.start()
        self.owner = owner

    async def leave(self) -> None:
        """The owner lets the log go."""
        assert self.host is not None
        assert self.owner is not None
        host, owner, self.host, self.owner = self.host, self.owner, None, None
        await host.close()
        owner.service.dropped(STREAM)

    async def move(self, worker: int) -> None:
        """The log goes to another worker."""
        await self.leave()
        await self.take(worker)

    async def produce(self, values: list[bytes], timestamps: list[int] | None = None) -> None:
        """Deliver records, again and again until they are ACKed."""
        ids = PositionIds("windows/p/0", 0, list(range(self.position, self.position + len(values))))
        self.position += len(values)
        sender = Sender("injector/windows/p", 1, None, "injector/windows")
        answers = _Answers()
        while not answers.acked.done():
            if self.host is not None:
                stamps = timestamps or [1_000_000] * len(values)
                self.host.post(
                    Delivery("log", JOURNAL, STREAM, sender, ids, [b""] * len(values), values, stamps, 0, answers)
                )
            await asyncio.wait([answers.acked], timeout=0.02)

    def watermark(self, value: int) -> None:
        """The authority broadcasts the injectors' watermark."""
        assert self.host is not None
        self.host.post(SenderWatermarks({"injector/windows": value}))


@asynccontextmanager
async def cluster_of(settings: LogSettings | None = None) -> AsyncIterator[Cluster]:
    """A cluster whose first worker owns the log."""
    cluster = Cluster(settings or LogSettings())
    run = cluster.store.create_journal(JOURNAL)
    await run
    servers: list[grpc.aio.Server] = [cluster.server, *(worker.server for worker in cluster.workers)]
    for server in servers:
        await server.start()
    await cluster.take(0)
    try:
        yield cluster
    finally:
        if cluster.host is not None:
            await cluster.leave()
        for server in servers:
            await server.stop(None)
