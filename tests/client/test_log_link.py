"""How a subscriber's call begins, and how it learns why the log's owner ended it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from millwheel.client.subscription.log_link import LogLink
from millwheel.client.subscription.reading import LogCall
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.errors import abort
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.rpc.v1 import subscription_pb2_grpc
from tests.serving import LoopbackServer


class Refusing(subscription_pb2_grpc.SubscriptionServiceServicer):
    async def Subscribe(self, requests: Any, context: Any) -> Any:
        async for _ in requests:
            await abort(context, RequestError(FailureCode.FAILED_PRECONDITION, "no such cursor"))
        yield wire.SubscribeResponse()


class Control:
    """A routing service with the log's address."""

    def __init__(self, address: str) -> None:
        self.answer = control.EnsureStreamLogResponse(incarnation=IncarnationId("s.1"))
        self.answer.owner.address = address

    async def ensure_stream_log(self, stream: str) -> control.EnsureStreamLogResponse:
        return self.answer

    async def close(self) -> None:
        pass


class Late:
    """A call that ends before its second request is written."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.written = 0

    async def write(self, request: wire.SubscribeRequest) -> None:
        self.written += 1
        if self.written > 1:
            await self.call.code()
        await self.call.write(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.call, name)


async def test_a_call_that_ends_while_it_begins_reports_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stub:
        def __init__(self, channel: Any) -> None:
            self.real = subscription_pb2_grpc.SubscriptionServiceStub(channel)

        def Subscribe(self) -> Late:
            return Late(self.real.Subscribe())

    monkeypatch.setattr("millwheel.client.subscription.reading.SubscriptionServiceStub", Stub)
    add = partial(subscription_pb2_grpc.add_SubscriptionServiceServicer_to_server, Refusing())  # type: ignore[abstract]
    async with LoopbackServer(add) as address:
        link = LogLink(Control(address), "s", patience=30.0)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="no such cursor") as caught:
            await link.reopen(lambda: [wire.SubscribeRequest()] * 3, None)
        assert caught.value.code is FailureCode.FAILED_PRECONDITION
        await link.close()


class Held:
    """A call that takes nothing before ``gate`` is set."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self.gate = asyncio.Event()

    async def write(self, request: wire.SubscribeRequest) -> None:
        await self.gate.wait()
        await asyncio.sleep(0)
        self.got.append(request.ack.below_offset)

    async def read(self) -> wire.SubscribeResponse:
        return wire.SubscribeResponse()

    def cancel(self) -> None:
        pass


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """The call that the next call to a log is."""
    call = Held()

    class Stub:
        def __init__(self, channel: Any) -> None:
            pass

        def Subscribe(self) -> Held:
            return call

    monkeypatch.setattr("millwheel.client.subscription.reading.SubscriptionServiceStub", Stub)
    return call


def ack(below: int) -> wire.SubscribeRequest:
    return wire.SubscribeRequest(ack=wire.SubscribeAck(below_offset=below))


@pytest.mark.guarantee("G8", section="4.3")
async def test_a_call_begins_with_what_was_acked_meanwhile(held: Held) -> None:
    """Another task of the program ACKs while the log's owner is looked for."""
    acked = [5]

    class Slow(Control):
        async def ensure_stream_log(self, stream: str) -> control.EnsureStreamLogResponse:
            acked.append(9)
            return await super().ensure_stream_log(stream)

    held.gate.set()
    link = LogLink(Slow("127.0.0.1:1"), "s", patience=30.0)  # type: ignore[arg-type]
    await link.reopen(lambda: [ack(acked[-1])], None)
    await link.close()
    assert held.got == [9]


@pytest.mark.guarantee("G8", section="4.3")
async def test_a_request_goes_after_the_first_ones(held: Held) -> None:
    async def moved(address: str) -> bool:
        return False

    call = LogCall("s", "127.0.0.1:1", moved)
    beginning = asyncio.ensure_future(call.begin([ack(1), ack(2)]))
    await asyncio.sleep(0)
    writing = asyncio.ensure_future(call.write(ack(3)))
    await asyncio.sleep(0)
    held.gate.set()
    await beginning
    assert await writing
    await call.close()
    assert held.got == [1, 2, 3]
