"""A call that is read and written at once ends both tasks, whichever side or task ends first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest

from millwheel.rpc.writing import writing

pytestmark = pytest.mark.timeout(30)


class Server:
    """Echoes the requests until the test ends it."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.left = asyncio.Event()
        """Set when a call has ended at the server."""

    async def talk(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        try:
            async for request in requests:
                self.received.append(request)
                if request == b"refuse":
                    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "refused")
                if request == b"end":
                    return
                yield request
        finally:
            self.left.set()


@asynccontextmanager
async def conversing() -> AsyncIterator[tuple[Server, Any]]:
    """A server, and a call to it."""
    received, server = Server(), grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(received.talk)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"m": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.stream_stream
        yield received, call("/s/m")()
    await server.stop(None)


async def write_for_ever(call: Any, *messages: bytes) -> None:
    for message in messages:
        await call.write(message)
    await asyncio.Event().wait()


async def read(call: Any, write: Coroutine[Any, Any, None], heed: Callable[[bytes], object]) -> None:
    async with writing(call, write):
        async for answer in call:
            heed(answer)


async def test_what_is_written_is_answered_until_the_server_ends() -> None:
    answers: list[bytes] = []
    async with conversing() as (server, call):
        await read(call, write_for_ever(call, b"1", b"2", b"end"), answers.append)
        assert server.received == [b"1", b"2", b"end"]
    assert answers == [b"1", b"2"]


async def test_the_servers_reason_is_reported() -> None:
    async with conversing() as (_, call):
        with pytest.raises(grpc.aio.AioRpcError, match="refused"):
            await read(call, write_for_ever(call, b"refuse"), print)


async def test_a_writer_that_fails_ends_the_call_with_its_error() -> None:
    """Otherwise the reader would wait for ever for answers to a message that was never sent."""

    async def write(call: Any) -> None:
        await call.write(b"1")
        raise ValueError("cannot be encoded")

    async with conversing() as (server, call):
        with pytest.raises(ValueError, match="cannot be encoded"):
            await read(call, write(call), print)
        await server.left.wait()


async def test_a_writer_that_fails_as_the_server_ends_is_reported() -> None:
    ended = asyncio.Event()

    async def write(call: Any) -> None:
        await call.write(b"end")
        await ended.wait()
        raise ValueError("cannot be encoded")

    async def read_to_the_end(call: Any) -> None:
        async with writing(call, write(call)):
            assert [answer async for answer in call] == []
            ended.set()
            for _ in range(3):
                await asyncio.sleep(0)

    async with conversing() as (_, call):
        with pytest.raises(ValueError, match="cannot be encoded"):
            await read_to_the_end(call)


async def test_a_writer_on_an_ended_call_is_no_failure() -> None:
    """Regression: each move of an authority's shard closed its channel, and was logged as an error."""

    async def write(call: Any) -> None:
        await call.write(b"1")
        call.cancel()
        await call.write(b"2")

    async with conversing() as (_, call):
        with pytest.raises(asyncio.CancelledError):
            await read(call, write(call), print)


async def test_a_reader_that_fails_ends_the_writer_and_the_call() -> None:
    def fail(answer: bytes) -> None:
        raise ValueError(f"{answer!r} cannot be read")

    async with conversing() as (server, call):
        with pytest.raises(ValueError, match="cannot be read"):
            await read(call, write_for_ever(call, b"1"), fail)
        await server.left.wait()
    assert len(asyncio.all_tasks()) == 1


async def test_a_cancellation_of_the_reader_stays_one() -> None:
    answered = asyncio.Event()
    async with conversing() as (server, call):
        reader = asyncio.create_task(read(call, write_for_ever(call, b"1"), lambda _: answered.set()))
        await answered.wait()
        reader.cancel()
        await asyncio.wait([reader])
        assert reader.cancelled()
        await server.left.wait()


async def test_a_cancellation_that_the_call_hides_is_not_lost() -> None:
    """Regression: a call that ended in the same moment hid the cancellation.

    The cancelled task continued, and its caller waited.
    """
    reading = asyncio.Event()
    async with conversing() as (_, call):

        async def read_to_an_end() -> None:
            async with writing(call, write_for_ever(call)):
                reading.set()
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()

        reader = asyncio.create_task(read_to_an_end())
        await reading.wait()
        reader.cancel()
        await asyncio.wait([reader])
        assert reader.cancelled()


async def test_a_cancelled_call_is_no_failure_of_its_writer() -> None:
    async with conversing() as (_, call):
        with pytest.raises(asyncio.CancelledError):
            await read(call, write_for_ever(call, b"1"), lambda _: call.cancel())
