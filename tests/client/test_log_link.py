"""A subscriber learns why the log's owner ended its call, even if it still had requests to send."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from millwheel.client.subscription.log_link import LogLink
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
