"""Readers of states and tables end: at answers without states, at records that are gone, at a close (G8)."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest

from millwheel.client.background import BackgroundLoop
from millwheel.client.control import ControlClient
from millwheel.client.states import StateReader
from millwheel.client.subscription import StreamTable
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import state_pb2, state_pb2_grpc
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.rpc.v1.topology_pb2 import StreamSpec
from millwheel.sdk.errors import UsageError
from tests.patience import patience
from tests.serving import LoopbackServer


class Silent(state_pb2_grpc.StateServiceServicer):
    """Answers for no key."""

    def __init__(self) -> None:
        self.requests = 0

    async def GetStates(self, request: Any, context: Any) -> state_pb2.GetStatesResponse:
        self.requests += 1
        return state_pb2.GetStatesResponse()

    async def ListStates(self, request: Any, context: Any) -> state_pb2.ListStatesResponse:
        raise AssertionError("no test lists states")


def placement(address: str) -> control.GetTopologyResponse:
    found = control.GetTopologyResponse()
    found.topology.spec.name = "shop"
    found.topology.incarnations["count"] = IncarnationId("count.1")
    interval = found.interval_maps.add(topology="shop", computation="count").intervals.add()
    interval.owner.address = address
    return found


async def test_a_worker_that_answers_for_no_key_is_asked_with_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Silent()
    async with LoopbackServer(
        lambda server: state_pb2_grpc.add_StateServiceServicer_to_server(silent, server)
    ) as address:
        reader = StateReader("shop/count", int, patience=0.3)

        async def found(client: ControlClient, name: str) -> control.GetTopologyResponse:
            return placement(address)

        monkeypatch.setattr(ControlClient, "get_topology", found)
        async with reader:
            with pytest.raises(RequestError, match="answered for no key"):
                await asyncio.wait_for(reader.get("k"), patience(10))
    assert silent.requests < 20


class Answers:
    """The responses of a log, one after the other. Then it is silent."""

    def __init__(self, *responses: wire.SubscribeResponse) -> None:
        self.responses = list(responses)
        self.call = None
        self.spec = StreamSpec(name="words")

    async def reopen(self, *_: Any) -> wire.SubscribeResponse:
        if not self.responses:
            await asyncio.Event().wait()
        return self.responses.pop(0)

    async def close(self) -> None:
        pass


async def test_a_table_enters_though_its_records_are_gone_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    first = wire.SubscribeResponse(first_offset=0, next_offset=1, values=[b"a"], timestamps_us=[1], end_offset=9)
    # Retention has deleted the rest before it was read.
    gone = wire.SubscribeResponse(first_offset=9, next_offset=9, end_offset=9)
    monkeypatch.setattr("millwheel.client.subscription.subscriber.LogLink", lambda *_: Answers(first, gone))
    table = StreamTable[bytes, bytes]("words", lambda value: value)
    async with asyncio.timeout(patience(10)), table:
        assert table.rows == {b"a": b"a"}


def test_a_blocked_call_ends_when_its_loop_is_closed() -> None:
    loop, ended = BackgroundLoop("test"), list[BaseException]()

    def block() -> None:
        try:
            loop.run(asyncio.Event().wait())
        except CancelledError as error:
            ended.append(error)

    thread = threading.Thread(target=block)
    thread.start()
    loop.run(asyncio.sleep(0.01))
    loop.stop()
    thread.join(patience(10))
    assert len(ended) == 1
    with pytest.raises(UsageError, match="is closed"):
        loop.run(asyncio.sleep(0))
