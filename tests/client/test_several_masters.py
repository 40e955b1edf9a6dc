"""Clients that know several masters find the leader from any of them (section 7.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from deploy.local.child import free_ports
from millwheel.client.control import ControlClient
from millwheel.master.replica import MasterReplica
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.store.memory import MemoryStore
from tests.coordination.memory import MemoryCoordinator
from tests.master.replica import replica
from tests.patience import patience

TTL = patience(0.5)


class Masters:
    """Two masters, in the order of their addresses: the leader and the standby."""

    def __init__(
        self, first: tuple[str, MasterReplica], second: tuple[str, MasterReplica], stack: AsyncExitStack
    ) -> None:
        self.leader, self.standby = first[0], second[0]
        self.second = second[1]
        self._stack = stack

    async def lose_leader(self) -> None:
        await self._stack.aclose()


@pytest.fixture
async def masters() -> AsyncIterator[Masters]:
    coordinator, store = MemoryCoordinator(), MemoryStore()
    async with AsyncExitStack() as stack:
        leading = await stack.enter_async_context(AsyncExitStack())
        first = await leading.enter_async_context(replica(coordinator, store, ttl=TTL))
        await first[1].leading()
        second = await stack.enter_async_context(replica(coordinator, store, ttl=TTL))
        yield Masters(first, second, leading)
    await coordinator.close()


async def test_a_standby_names_the_leader_even_to_an_impatient_caller(masters: Masters) -> None:
    async with ControlClient(f"{masters.standby},{masters.leader}") as client:
        assert await client.list_topologies() == []
        assert client.address == masters.leader


async def test_an_address_without_a_server_causes_no_delay(masters: Masters) -> None:
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    async with ControlClient(f"{nobody}, {masters.standby}, {masters.leader}") as client:
        assert await client.list_topologies() == []


async def test_when_the_leader_is_lost_calls_go_on_at_the_next(masters: Masters) -> None:
    async with ControlClient(f"{masters.leader},{masters.standby}", patience=patience(20)) as client:
        assert await client.list_topologies() == []
        await masters.lose_leader()
        assert await client.list_topologies() == []
        assert client.address == masters.standby
        await masters.second.leading()


async def test_a_watch_of_the_routing_survives_the_leader(masters: Masters) -> None:
    async with ControlClient(f"{masters.leader},{masters.standby}", patience=patience(20)) as client:
        watch = client.watch_routing("unknown")
        with pytest.raises(RequestError) as caught:
            await anext(watch)
        before = caught.value.code
        await masters.lose_leader()
        with pytest.raises(RequestError) as caught:
            await anext(client.watch_routing("unknown"))
        assert caught.value.code is before is FailureCode.NOT_FOUND
        assert client.address == masters.standby


async def test_without_any_server_the_failure_names_that_at_once() -> None:
    two = [f"127.0.0.1:{free_ports(1)[0]}" for _ in range(2)]
    async with asyncio.timeout(patience(5)), ControlClient(",".join(two)) as client:
        with pytest.raises(RequestError, match="cannot reach a MillWheel server") as caught:
            await client.list_topologies()
    assert f"`systemctl start millwheel-master` on the machine of one of {', '.join(two)}" in str(caught.value)
