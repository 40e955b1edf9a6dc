"""Bytes that are no message get a clear answer. They cause no internal error of the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.failures import FailureCode
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1 import control_pb2, delivery_pb2
from tests.patience import patience

BAD = b"\xff\xff\xff\xff"
PARTS = {"unary_unary", "unary_stream", "stream_unary", "stream_stream"}


class Echo:
    """One method of each kind; the streams of the last are read in a task of their own, as deliveries are."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def unary_unary(self, request: Any, context: Any) -> Any:
        self.seen.append(request)
        return request

    async def unary_stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.seen.append(request)
        yield request

    async def stream_unary(self, requests: AsyncIterator[Any], context: Any) -> Any:
        async for request in requests:
            self.seen.append(request)
        return control_pb2.GetTopologyRequest()

    async def stream_stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        queue: asyncio.Queue[Any] = asyncio.Queue()

        async def read() -> None:
            try:
                async for request in requests:
                    queue.put_nowait(request)
            finally:
                queue.put_nowait(None)

        reader = asyncio.create_task(read())
        while (request := await queue.get()) is not None:
            self.seen.append(request)
            yield request
        await asyncio.gather(reader, return_exceptions=True)

    def handlers(self) -> dict[str, Any]:
        kind = control_pb2.GetTopologyRequest
        return {
            name: getattr(grpc, f"{name}_rpc_method_handler")(
                getattr(self, name), request_deserializer=kind.FromString, response_serializer=kind.SerializeToString
            )
            for name in PARTS
        }


@asynccontextmanager
async def served(echo: Echo) -> AsyncIterator[Any]:
    server = create_server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", echo.handlers()),))
    address = bind(server)
    await server.start()
    async with open_channel(address) as channel:
        yield channel
    await server.stop(None)


async def read(call: Any, answers: list[bytes]) -> None:
    async for answer in call:
        answers.append(answer)


@pytest.mark.parametrize("part", sorted(PARTS))
async def test_bytes_that_are_no_message_are_refused_with_a_reason(part: str, caplog: pytest.LogCaptureFixture) -> None:
    """Regression: the call ended with UNKNOWN, and the server logged a traceback."""
    echo, good = Echo(), control_pb2.GetTopologyRequest(name="t").SerializeToString()
    async with served(echo) as channel, asyncio.timeout(patience(10)):
        call: Any = channel.stream_stream(f"/echo/{part}")()
        if part.startswith("stream"):
            await call.write(good)
        await call.write(BAD)
        await call.done_writing()
        answers: list[bytes] = []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(call, answers)
    shown = from_rpc_error(caught.value)
    assert shown.code is FailureCode.INVALID_ARGUMENT
    assert shown.reason == "MESSAGE_INVALID"
    assert f"/echo/{part}" in shown.message
    assert answers == ([good] if part == "stream_stream" else []), "what came before it counts"
    assert len(echo.seen) == part.startswith("stream")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_whole_messages_go_through_as_ever() -> None:
    echo, good = Echo(), delivery_pb2.DeliverRequest().SerializeToString()
    async with served(echo) as channel, asyncio.timeout(patience(10)):
        for part in sorted(PARTS):
            call: Any = channel.stream_stream(f"/echo/{part}")()
            await call.write(good)
            await call.done_writing()
            assert [answer async for answer in call] == [b""]
    assert len(echo.seen) == len(PARTS)
