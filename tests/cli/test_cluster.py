"""`millwheel cluster health` against a real master. Workers and the authority run, or are missing."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from millwheel.master.messages import RecordEvent
from millwheel.master.settings import MasterSettings
from millwheel.model.time import milliseconds
from millwheel.rpc.server import add_health, bind, create_server
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.store.memory import MemoryStore
from tests.cli.test_topology import GOOD, Cli
from tests.coordination.memory import MemoryCoordinator
from tests.master.replica import owner, register_authority, register_worker, replica
from tests.patience import patience

SETTINGS = MasterSettings(poll_loads_every=milliseconds(50))


async def healthy(cli: Cli) -> dict[str, Any]:
    """What it shows as soon as all is well; the last that it showed if that does not come."""
    found: dict[str, Any] = {}
    for _ in range(20):
        shown = await cli("cluster", "health", "-o", "json")
        found = json.loads(shown.out)
        assert shown.code == (0 if found["healthy"] else 1)
        assert bool(found["problems"]) is not found["healthy"]
        if found["healthy"]:
            break
    return found


async def test_everything_that_is_wrong_is_named_and_exits_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.master.services.cluster.FRESH", milliseconds(1))
    coordinator = MemoryCoordinator()
    async with replica(coordinator, MemoryStore(), SETTINGS) as (address, master):
        await master.leading()
        cli = Cli(address)
        await cli("topology", "submit", GOOD)
        shown = await cli("cluster", "health")
        assert shown.code == 1
        assert "there are no workers: start `millwheel worker run`" in shown.out
        assert "no process serves authority shard 0: start `millwheel authority run`" in shown.out
        assert "3 intervals (2 of logs), 3 without an owner, 0 starting from others" in shown.out
        await register_worker(coordinator, "w1", "127.0.0.1:1")
        await register_authority(coordinator, "127.0.0.1:2")
        async with asyncio.timeout(patience(10)):
            while "worker w1 at 127.0.0.1:1 has reported no load lately" not in shown.out:
                shown = await cli("cluster", "health")
        assert shown.code == 1
        assert "authority shard 0 at 127.0.0.1:2 does not answer" in shown.out
        event = catalog.EventRecord(kind="worker.left", subject="w2", before="127.0.0.1:3")
        await master.ask(RecordEvent(event))
        async with asyncio.timeout(patience(10)):  # the event comes back from the coordinator
            while "worker w2" not in shown.out:
                shown = await cli("cluster", "health")
        (row,) = [line for line in shown.out.splitlines() if line.startswith("worker w2")]
        assert row.split()[2:7] == ["127.0.0.1:3", "stopped", "in", "order", "at"], "it has not come back"
    await coordinator.close()


async def test_a_healthy_cluster_is_reported_and_exits_0() -> None:
    coordinator, store = MemoryCoordinator(), MemoryStore()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(owner(coordinator, "w1"))
        authority = create_server()
        await register_authority(coordinator, bind(authority))
        await add_health(authority, ())
        await authority.start()
        stack.push_async_callback(authority.stop, 0)
        address, master = await stack.enter_async_context(replica(coordinator, store, SETTINGS))
        standby, _ = await stack.enter_async_context(replica(coordinator, store, SETTINGS))
        await master.leading()
        cli = Cli(standby)
        await cli("topology", "submit", GOOD)
        found = await healthy(cli)
        assert found["problems"] == []
        masters = {one["address"]: one["leads"] for one in found["masters"]}
        assert masters == {address: True, standby: False}
        (worker,) = found["workers"]
        assert (worker["worker"], worker["intervals"], worker["answers"]) == ("w1", 3, True)
        assert worker["memory_limit_bytes"] == 1 << 30
        assert found["authorities"][0]["answers"] is True
        assert found["store"]["answers"] is True
        assert found["intervals"] == {"all": 3, "without_owner": 0, "with_parents": 0, "logs": 2}
        table = await cli("cluster", "health")
        assert table.out.splitlines()[0] == "the cluster is healthy"
        assert "stands by" in table.out
        as_yaml = await cli("cluster", "health", "-o", "yaml")
        assert "healthy: true" in as_yaml.out
    await coordinator.close()
