"""The client of the Deliver call, over loopback: which events its owner gets (6.1.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from millwheel.rpc.delivery_connection import DeliveryConnection
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1 import delivery_pb2_grpc
from tests.patience import until
from tests.serving import LoopbackServer


class Echo(delivery_pb2_grpc.DeliveryServiceServicer):
    """ACKs each delivery at once, and ends the stream after the token 0."""

    async def Deliver(
        self, request_iterator: AsyncIterator[wire.DeliverRequest], context: Any
    ) -> AsyncIterator[wire.DeliverResponse]:
        async for request in request_iterator:
            if not request.token:
                return
            yield wire.DeliverResponse(token=request.token, outcome=wire.DELIVERY_OUTCOME_ACKED)


class Owner:
    """Keeps the events in their order."""

    def __init__(self, *, goes_on: bool = True) -> None:
        self.events: list[Any] = []
        self._goes_on = goes_on

    def connected(self, address: str) -> None:
        self.events.append("connected")

    def disconnected(self, address: str) -> None:
        self.events.append("disconnected")

    def broke(self, address: str, error: Exception) -> bool:
        self.events.append(str(error))
        return self._goes_on

    def answered(self, response: wire.DeliverResponse) -> None:
        self.events.append(response.token)


def encode(token: int) -> wire.DeliverRequest:
    if token < 0:
        raise RuntimeError("not encodable")
    return wire.DeliverRequest(token=token)


def echoing(port: int = 0) -> AbstractAsyncContextManager[str]:
    add = partial(delivery_pb2_grpc.add_DeliveryServiceServicer_to_server, Echo())  # type: ignore[abstract]
    return LoopbackServer(add, port=port)


async def test_items_are_sent_in_order_and_an_ended_stream_is_reopened() -> None:
    owner = Owner()
    async with echoing() as address:
        connection = DeliveryConnection(address, encode, owner)
        for token in (1, 2, 3, 0):
            connection.send(token)
        assert (connection.queued, connection.first_unwritten) == (4, 1)
        await until(lambda: owner.events.count("connected") == 2)
        assert owner.events == ["connected", 1, 2, 3, "disconnected", "connected"]
        connection.send(4)
        await until(lambda: 4 in owner.events)
        assert (connection.queued, connection.first_unwritten) == (0, None)
        await connection.close()
    assert owner.events[-1] == 4, "a connection that was closed reports nothing more"


async def test_items_for_an_absent_worker_are_dropped_and_reported() -> None:
    owner = Owner()
    async with echoing() as address:
        pass
    connection = DeliveryConnection(address, encode, owner)
    connection.send(1)
    await until(lambda: "disconnected" in owner.events)
    assert connection.queued == 0
    await until(lambda: connection.broken_seconds > 0)
    async with echoing(int(address.rpartition(":")[2])):
        await until(lambda: "connected" in owner.events)
        connection.send(2)
        await until(lambda: 2 in owner.events)
        assert connection.broken_seconds == 0
        await connection.close()
    assert 1 not in owner.events


async def test_the_owner_decides_if_an_unknown_error_ends_the_call() -> None:
    async with echoing() as address:
        for goes_on in (True, False):
            owner = Owner(goes_on=goes_on)
            connection = DeliveryConnection(address, encode, owner)
            connection.send(-1)
            await until(lambda owner=owner: "not encodable" in owner.events)  # type: ignore[misc]
            connection.send(1)
            if goes_on:
                await until(lambda owner=owner: owner.events.count("connected") == 2)  # type: ignore[misc]
                connection.send(2)
                await until(lambda owner=owner: 2 in owner.events)  # type: ignore[misc]
            await connection.close()
            assert owner.events.count("connected") == 1 + goes_on
