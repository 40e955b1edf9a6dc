"""Failures keep their cause, place and remedy on the way over gRPC."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial

import pytest

from millwheel.client.control import ControlClient
from millwheel.errors import NotInstalledError
from millwheel.model.backoff import Backoff
from millwheel.rpc.addresses import how_to_start
from millwheel.rpc.channel import open_channel, retrying
from millwheel.rpc.errors import abort, answering, calling
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import control_pb2_grpc, subscription_pb2_grpc
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.sdk.errors import Problem
from millwheel.store.contract import StoreUnavailableError
from tests.patience import patience
from tests.relay import CuttingProxy
from tests.serving import LoopbackServer


class Failing(control_pb2_grpc.TopologyServiceServicer):
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def GetTopology(self, request, context):  # type: ignore[no-untyped-def]
        async def work() -> control.GetTopologyResponse:
            raise self.error

        return await answering(context, work)

    async def DownloadPackage(self, request, context):  # type: ignore[no-untyped-def]
        yield control.DownloadPackageResponse(chunk=b"x")
        assert isinstance(self.error, RequestError)
        await abort(context, self.error)


def failing_with(error: Exception) -> AbstractAsyncContextManager[str]:
    return LoopbackServer(partial(control_pb2_grpc.add_TopologyServiceServicer_to_server, Failing(error)))  # type: ignore[abstract]


async def shown(error: Exception) -> RequestError:
    async with failing_with(error) as address, ControlClient(address) as client:
        with pytest.raises(RequestError) as caught:
            await client.get_topology("x")
        if isinstance(error, RequestError):
            with pytest.raises(RequestError, match=error.message):
                await client.download_package("0" * 64)
        return caught.value


async def test_everything_arrives() -> None:
    problems = [Problem("stream 'a'", "is odd"), Problem("b", "ünïcode")]
    sent = RequestError(
        FailureCode.FAILED_PRECONDITION, "no", "do so", reason="ODD", problems=problems, leader="127.0.0.1:5"
    )
    got = await shown(sent)
    for name in ("code", "message", "remedy", "reason", "problems", "leader"):
        assert getattr(got, name) == getattr(sent, name)
    assert str(got) == "no\n  stream 'a': is odd\n  b: ünïcode\ndo so"
    assert str(RequestError(FailureCode.ABORTED, "no", "do so")) == "no: do so"


async def test_long_lists_of_problems_arrive_and_endless_ones_are_cut() -> None:
    many = [Problem(f"computation {number}", "x" * 150) for number in range(1_000)]
    got = await shown(RequestError(FailureCode.INVALID_ARGUMENT, "many", problems=many))
    assert list(got.problems) == many
    endless = [Problem("é" * 20_000, "é" * 20_000)] * 1_000
    got = await shown(RequestError(FailureCode.INVALID_ARGUMENT, "many", problems=endless))
    assert got.code is FailureCode.INVALID_ARGUMENT
    assert got.problems[0].where.endswith("… (20,000 characters in all)")
    assert got.problems[-1] == Problem("…", f"{1_000 - len(got.problems) + 1:,} more problems")


async def test_a_failing_store_is_unavailable_and_a_fault_is_internal() -> None:
    assert (await shown(StoreUnavailableError("gone"))).code is FailureCode.UNAVAILABLE
    got = await shown(KeyError("k"))
    assert got.code is FailureCode.INTERNAL
    assert "KeyError" in got.message
    assert "log" in got.remedy


async def test_a_library_that_a_server_lacks_is_no_fault() -> None:
    got = await shown(NotInstalledError("entry 3: install openmillwheel[arrow]"))
    assert (got.code, got.reason) == (FailureCode.FAILED_PRECONDITION, "NOT_INSTALLED")
    assert (got.message, "install it where this server runs" in got.remedy) == (
        "entry 3: install openmillwheel[arrow]",
        True,
    )


async def test_a_server_that_is_not_there_is_named_with_what_to_do() -> None:
    async with ControlClient("127.0.0.1:1") as client:
        with pytest.raises(RequestError, match=r"127\.0\.0\.1:1 ") as caught:
            await client.list_topologies()
    assert caught.value.code is FailureCode.UNAVAILABLE
    assert "start-dev" in caught.value.remedy


@pytest.mark.parametrize(
    ("masters", "said", "unsaid"),
    [
        (["127.0.0.1:7433"], "`millwheel server start-dev`", "systemctl"),
        (["127.0.0.1:8000"], "`systemctl start millwheel-master` if this is a cluster", "others"),
        (["mw-1.example.org:7433"], "`systemctl start millwheel-master` on its machine", "start-dev"),
        (["127.0.0.1:7001", "127.0.0.1:7002"], "of one of 127.0.0.1:7001, 127.0.0.1:7002", "start-dev"),
        ([], "see whether its process runs", "start-dev"),
    ],
)
def test_only_a_development_server_is_started_as_one(masters: list[str], said: str, unsaid: str) -> None:
    """Regression: with all masters down, the operator of a cluster was to start a development server."""
    assert said in how_to_start(masters)
    assert unsaid not in how_to_start(masters)


async def test_a_server_behind_a_slow_connection_is_reached() -> None:
    async with (
        failing_with(KeyError("reached")) as address,
        CuttingProxy(address, delay=0.6) as line,
        ControlClient(line.address) as client,
    ):
        with pytest.raises(RequestError, match="reached"):
            await client.get_topology("x")


async def test_a_silent_server_is_given_up_at_the_deadline() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        async with ControlClient(f"127.0.0.1:{silent.getsockname()[1]}", deadline=0.2) as client:
            with pytest.raises(RequestError) as caught:
                await client.list_topologies()
    assert caught.value.code in (FailureCode.DEADLINE_EXCEEDED, FailureCode.UNAVAILABLE)


async def test_a_call_that_the_server_does_not_know_is_answered_so() -> None:
    async with LoopbackServer() as address, open_channel(address) as channel:
        stub = control_pb2_grpc.TopologyServiceStub(channel)
        with pytest.raises(RequestError, match="does not offer this call"):
            async with calling(address):
                await stub.GetTopology(control.GetTopologyRequest(), timeout=patience(5))


class Ending(subscription_pb2_grpc.SubscriptionServiceServicer):
    """Ends each call at its first request."""

    async def Subscribe(self, requests, context):  # type: ignore[no-untyped-def]
        async for _ in requests:
            await abort(context, RequestError(FailureCode.FAILED_PRECONDITION, "no"))
        yield wire.SubscribeResponse()


async def test_a_call_that_ends_during_a_write_is_no_server_failure() -> None:
    server = create_server()
    address = bind(server)
    subscription_pb2_grpc.add_SubscriptionServiceServicer_to_server(Ending(), server)  # type: ignore[abstract]
    await server.start()
    channel = open_channel(address)
    seen: list[RequestError] = []

    async def write() -> None:
        call = subscription_pb2_grpc.SubscriptionServiceStub(channel).Subscribe()  # type: ignore[call-arg]
        async with calling(address):
            with suppress(asyncio.InvalidStateError):  # it has ended already
                while True:
                    await call.write(wire.SubscribeRequest())
            await call.read()

    while not any("while it was written to" in error.message for error in seen):
        assert len(seen) < 5_000, "gRPC always says why by now: what is made of its own answer can go"
        with pytest.raises(RequestError) as caught:
            await write()
        seen.append(caught.value)
    assert {error.code for error in seen} <= {FailureCode.FAILED_PRECONDITION, FailureCode.UNAVAILABLE}
    await channel.close(None)
    await server.stop(0)


async def test_a_taken_port_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        server = create_server()
        with pytest.raises(RequestError, match=f"127.0.0.1:{port}: the port is in use: .*another port"):
            bind(server, port)
    assert bind(server, port) == f"127.0.0.1:{port}"
    await server.stop(None)


async def test_only_passing_failures_are_tried_again_and_not_for_ever() -> None:
    attempts = []

    async def failing(code: FailureCode, times: int) -> str:
        attempts.append(code)
        if len(attempts) <= times:
            raise RequestError(code, "no")
        return "yes"

    quick = Backoff(0.01, 0.02)
    assert await retrying(lambda: failing(FailureCode.UNAVAILABLE, 3), patience=5, backoff=quick) == "yes"
    assert len(attempts) == 4
    attempts.clear()
    with pytest.raises(RequestError):
        await retrying(lambda: failing(FailureCode.NOT_FOUND, 1), patience=5, backoff=quick)
    assert len(attempts) == 1
    attempts.clear()
    async with asyncio.timeout(patience(5)):
        with pytest.raises(RequestError):
            await retrying(lambda: failing(FailureCode.ABORTED, 10**9), patience=0.2, backoff=quick)


async def test_the_last_attempt_begins_when_patience_ends() -> None:
    attempts = []

    async def failing() -> None:
        attempts.append(asyncio.get_running_loop().time())
        raise RequestError(FailureCode.UNAVAILABLE, "no")

    with pytest.raises(RequestError):
        await retrying(failing, patience=0.2, backoff=Backoff(60.0, 60.0))
    assert attempts[-1] - attempts[0] >= 0.19
