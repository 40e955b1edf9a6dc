"""What injecting costs the client: `python -m bench.injector [RECORDS]`.

The records are those of the keyed count: 100 bytes, one consumer with a field as key, four intervals. "client" is the
client's work without a network: encoding, keying, batching, building messages and processing ACKs. "loopback" sends the
records to a worker in another process, which ACKs at once.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from typing import Any, assert_never

import uvloop

from bench.load import batches
from bench.topologies import counts
from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.driver import SenderIdentity
from millwheel.client.injector.encoding import RecordEncoder
from millwheel.client.injector.ids import IdHasher, IdKind, IdScope, partition_scope
from millwheel.client.injector.messages import (
    Connect,
    ConnectionLost,
    ConnectionOpened,
    DeliveryAnswered,
    Disconnect,
    InjectorEffect,
    KeyedRecords,
    PublishWatermark,
    RoutingArrived,
    SendBatch,
    Tick,
)
from millwheel.client.injector.routing import ConsumerRouting, Route, StreamRouting
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import KeyInterval
from millwheel.rpc.deliveries import answered_tokens
from millwheel.rpc.delivery_connection import DeliveryConnection
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1.delivery_pb2_grpc import DeliveryServiceServicer, add_DeliveryServiceServicer_to_server

__all__ = ["main"]

_ACKED = wire.DELIVERY_OUTCOME_ACKED
_CONSUMER = IncarnationId("counts.1")
_IDENTITY = SenderIdentity("events", "bench", 1)


def routing(address: str) -> StreamRouting:
    """Four intervals of the keyed count, all at one address."""
    bounds = [b"", b"key-02500", b"key-05000", b"key-07500", None]
    routes = [
        Route(KeyInterval(start or b"", end), f"{_CONSUMER}.j{number}", address)
        for number, (start, end) in enumerate(pairwise(bounds))
    ]
    computation = next(iter(counts.plan().computations))
    consumer = ConsumerRouting(_CONSUMER, routes, topology=counts.name, computation=computation, fields=["key"])
    return StreamRouting(1, {_CONSUMER: consumer}, position_ranges=True)


class Feed:
    """Turns the keyed count's batches into columns."""

    def __init__(self, how: str) -> None:
        self._how = how
        self._encoder = RecordEncoder("events", counts)
        self._hasher = IdHasher("events", "bench")
        self._at = 0

    def columns(self, core: InjectorCore, batch: tuple[list[str], list[Any], list[int]]) -> KeyedRecords:
        """One batch in the form in which the driver prepares it."""
        keys, values, stamps = batch
        assert core.routing is not None
        consumer = core.routing.consumers[_CONSUMER]
        form = core.routing.format
        data = self._encoder.encode(values, form)
        given = keys if self._how == "given keys" else None
        column = self._encoder.keys(consumer, values, data, given, form)
        numbers = range(self._at, self._at + len(values))
        self._at += len(values)
        if self._how == "opaque ids":
            return KeyedRecords(
                data, stamps, {_CONSUMER: column}, IdScope(IdKind.OPAQUE), self._hasher.hash_all(numbers)
            )
        return KeyedRecords(data, stamps, {_CONSUMER: column}, partition_scope("events", "bench", "0"), numbers)


def client_only(records: int, how: str) -> float:
    """Records per second of the client's own work."""
    core, feed = InjectorCore("events", "bench"), Feed(how)
    core.step(RoutingArrived(routing("a")), 0)
    core.step(ConnectionOpened("a"), 0)
    prepared = list(batches(records))
    began = time.perf_counter()
    for now, batch in enumerate(prepared):
        for send in core.step(feed.columns(core, batch), now):
            if isinstance(send, SendBatch):
                token = wire.DeliverRequest.FromString(_IDENTITY.request(send).SerializeToString()).token
                core.step(DeliveryAnswered((token,), _ACKED), now)
    taken = time.perf_counter() - began
    while core.unacked:
        for send in core.step(Tick(), 1 << 60):
            if isinstance(send, SendBatch):
                core.step(DeliveryAnswered((send.token,), _ACKED), 0)
    return records / taken


class _Events:
    """The links' events, for one core."""

    def __init__(self, core: InjectorCore, perform: Callable[[Any], None]) -> None:
        self._core = core
        self._perform = perform
        self.changed = asyncio.Event()

    def connected(self, address: str) -> None:
        self._perform(self._core.step(ConnectionOpened(address), 0))
        self.changed.set()

    def disconnected(self, address: str) -> None:
        self._perform(self._core.step(ConnectionLost(address), 0))

    def broke(self, address: str, error: Exception) -> bool:
        raise error

    def answered(self, response: wire.DeliverResponse) -> None:
        answer = DeliveryAnswered(answered_tokens(response), response.outcome, response.indexes)
        self._perform(self._core.step(answer, 0))
        self.changed.set()


async def loopback(records: int, how: str, address: str) -> float:
    """Records per second that are sent to a process that ACKs at once, and ACKed."""
    core, feed = InjectorCore("events", "bench"), Feed(how)

    def perform(effects: Sequence[InjectorEffect]) -> None:
        for effect in effects:
            match effect:
                case SendBatch():
                    link.send(effect)
                case Connect() | Disconnect():
                    """The only link exists from the start."""
                case PublishWatermark():
                    """No authority takes part."""
                case _:
                    assert_never(effect)

    events = _Events(core, perform)
    link = DeliveryConnection(address, _IDENTITY.request, events)
    core.step(RoutingArrived(routing(address)), 0)
    await events.changed.wait()
    prepared = list(batches(records))
    began = time.perf_counter()
    now = 0
    for batch in prepared:
        while core.room() < len(batch[1]):
            events.changed.clear()
            await events.changed.wait()
        now += 1
        perform(core.step(feed.columns(core, batch), now))
        await asyncio.sleep(0)
    while core.unacked:
        now += 3_000
        perform(core.step(Tick(), now))
        await asyncio.sleep(0)
    taken = time.perf_counter() - began
    await link.close()
    return records / taken


class _Sink(DeliveryServiceServicer):
    async def Deliver(
        self, request_iterator: AsyncIterator[wire.DeliverRequest], context: Any
    ) -> AsyncIterator[wire.DeliverResponse]:
        async for request in request_iterator:
            yield wire.DeliverResponse(token=request.token, outcome=_ACKED)


async def sink() -> None:
    """Run a worker that ACKs every record and stores nothing."""
    server = create_server()
    add_DeliveryServiceServicer_to_server(_Sink(), server)  # type: ignore[abstract]  # it is asked for no keys
    print(bind(server), flush=True)
    await server.start()
    await server.wait_for_termination()


def main(records: int = 400_000) -> None:
    """Print the figures."""
    for how in ("positions", "given keys", "opaque ids"):
        rate = max(client_only(records, how) for _ in range(3))
        print(f"client    {how:11} {rate:>10,.0f} records/s")
    with subprocess.Popen(
        [sys.executable, "-m", "bench.injector", "--sink"], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            address = child.stdout.readline().strip()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # one loop for all runs: bench/loop.py
                for how in ("positions", "opaque ids"):
                    rate = max(runner.run(loopback(records, how, address)) for _ in range(3))
                    print(f"loopback  {how:11} {rate:>10,.0f} records/s")
        finally:
            child.terminate()


if __name__ == "__main__":
    if sys.argv[1:] == ["--sink"]:
        uvloop.run(sink())
    else:
        main(*map(int, sys.argv[1:]))
