"""The metrics of a gRPC server count each call once, with its time and its status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import abort
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.measuring import Measuring
from millwheel.rpc.server import add_health, bind, create_server
from millwheel.rpc.v1 import control_pb2
from tests.patience import patience, until


class Service:
    """A method with one response and one with a stream of them. A name says how the call ends."""

    async def Get(self, request: Any, context: Any) -> Any:
        if request.name == "refused":
            await abort(context, RequestError(FailureCode.NOT_FOUND, "there is none", "", reason="X"))
        if request.name == "raises":
            raise ValueError(request.name)
        return request

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield request
        if request.name == "endless":
            await asyncio.Event().wait()


@asynccontextmanager
async def served(registry: CollectorRegistry) -> AsyncIterator[Any]:
    service, kind = Service(), control_pb2.GetTopologyRequest
    how: dict[str, Any] = {"request_deserializer": kind.FromString, "response_serializer": kind.SerializeToString}
    handlers = {
        "Get": grpc.unary_unary_rpc_method_handler(service.Get, **how),
        "Watch": grpc.unary_stream_rpc_method_handler(service.Watch, **how),
    }
    server = create_server([Measuring(registry)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("millwheel.v1.Service", handlers),))
    await add_health(server, [])
    address = bind(server)
    await server.start()
    async with open_channel(address) as channel, asyncio.timeout(patience(10)):
        yield channel
    await server.stop(None)


def message(name: str) -> bytes:
    return control_pb2.GetTopologyRequest(name=name).SerializeToString()


@pytest.mark.parametrize(("name", "code"), [("", "OK"), ("refused", "NOT_FOUND"), ("raises", "UNKNOWN")])
async def test_a_call_counts_with_its_time_and_status(name: str, code: str) -> None:
    registry = CollectorRegistry()
    async with served(registry) as channel:
        with suppress(grpc.aio.AioRpcError):
            await channel.unary_unary("/millwheel.v1.Service/Get")(message(name))
    labels = {"method": "Service/Get", "code": code}
    # The status of an abort is sent before the call has ended here.
    await until(lambda: registry.get_sample_value("millwheel_rpc_seconds_count", labels) == 1)
    assert 0 < (registry.get_sample_value("millwheel_rpc_seconds_sum", labels) or 0) < patience(10)
    assert registry.get_sample_value("millwheel_rpc_open_calls", {"method": "Service/Get"}) == 0


async def test_a_stream_is_open_until_it_ends() -> None:
    registry = CollectorRegistry()

    def ended(code: str) -> float | None:
        return registry.get_sample_value("millwheel_rpc_streams_total", {"method": "Service/Watch", "code": code})

    async with served(registry) as channel:
        watch = channel.unary_stream("/millwheel.v1.Service/Watch")
        assert [answer async for answer in watch(message("short"))] == [message("short")]
        assert ended("OK") == 1
        call = watch(message("endless"))
        assert await call.read() == message("endless")
        assert registry.get_sample_value("millwheel_rpc_open_calls", {"method": "Service/Watch"}) == 1
        call.cancel()
        await until(lambda: ended("CANCELLED") == 1)
    assert registry.get_sample_value("millwheel_rpc_open_calls", {"method": "Service/Watch"}) == 0


async def test_unknown_methods_make_no_labels() -> None:
    registry = CollectorRegistry()
    async with served(registry) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/millwheel.v1.Service/Absent")(b"")
    assert [sample for family in registry.collect() for sample in family.samples] == []


async def test_the_health_of_a_server_can_be_watched() -> None:
    """Regression: the call ended with UNKNOWN, because the service writes its responses instead of yielding them."""
    async with served(CollectorRegistry()) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        answer: Any = await call.read()
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        call.cancel()
