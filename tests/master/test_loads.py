"""The leading master balances by the loads that workers report, over loopback gRPC (sections 7.1, 8.4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from millwheel.client.control import ControlClient
from millwheel.master.balancing import BalanceSettings
from millwheel.master.messages import SubmitTopology
from millwheel.master.metrics import MasterCollector
from millwheel.master.replica import MasterReplica
from millwheel.master.settings import MasterSettings
from millwheel.model.catalog_keys import worker_key
from millwheel.model.time import Duration, milliseconds
from millwheel.rpc.v1 import interval_pb2 as wire
from millwheel.store.memory import MemoryStore
from tests.coordination.memory import MemoryCoordinator
from tests.master.replica import Owner, owner, replica
from tests.patience import until

from .harness import topology

AT_ONCE = BalanceSettings(cool_down=Duration(0), cold_for=Duration(0))


class Cluster:
    """A leading master with two workers."""

    def __init__(self, client: ControlClient, master: MasterReplica, workers: list[Owner]) -> None:
        self.client = client
        self.master = master
        self.workers = workers

    async def listed(self) -> list[wire.IntervalStatus]:
        return await self.client.list_intervals("zeitgeist", "window-counter")

    def scraped(self) -> str:
        registry = CollectorRegistry()
        registry.register(MasterCollector(self.master))
        return generate_latest(registry).decode()


async def owned_by(cluster: Cluster, worker: Owner) -> list[wire.IntervalStatus]:
    return [one for one in await cluster.client.list_intervals() if one.interval.owner.worker_id == worker.worker]


@pytest.fixture
def limits() -> BalanceSettings:
    return AT_ONCE


@pytest.fixture
async def cluster(limits: BalanceSettings) -> AsyncIterator[Cluster]:
    coordinator = MemoryCoordinator()
    settings = MasterSettings(poll_loads_every=milliseconds(30), balancing=limits)
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(owner(coordinator, name)) for name in ("w1", "w2")]
        address, master = await stack.enter_async_context(replica(coordinator, MemoryStore(), settings))
        client = await stack.enter_async_context(ControlClient(address))
        await master.leading()
        await master.ask(SubmitTopology(topology(), "r1"))
        for worker in workers:
            worker.independent = True
        yield Cluster(client, master, workers)
    await coordinator.close()


@pytest.mark.paper(section="8.4")
async def test_a_busy_interval_is_split_and_a_still_hot_key_is_named(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    for worker in cluster.workers:
        worker.busy, worker.sample = 0.9, {b"cat": 0.5, b"dog": 0.5}

    async def is_split() -> bool:
        return [one.interval.keys.start for one in await cluster.listed()] == [b"", b"dog"]

    async def are_named() -> bool:
        return [[hot.key for hot in one.hot_keys] for one in await cluster.listed()] == [[b"cat"], [b"dog"]]

    await until(is_split)
    await until(are_named)
    assert {(hot.key, round(hot.share, 2)) for hot in cluster.master.hot_keys} >= {(b"cat", 0.5), (b"dog", 0.5)}
    assert "key 'cat' of window-counter" in caplog.text
    text = cluster.scraped()
    assert 'interval_operations_total{by="balancer",kind="split",outcome="done"}' in text
    assert 'millwheel_master_hot_keys{computation="window-counter",topology="zeitgeist"} 2.0' in text
    assert "millwheel_master_leads 1.0" in text


async def test_intervals_that_do_not_run_are_counted(cluster: Cluster) -> None:
    async def counted(**reasons: int) -> bool:
        wanted = [
            f'computation="window-counter",reason="{reason}",topology="zeitgeist"}} {count}.0'
            for reason, count in reasons.items()
        ]
        return all(one in cluster.scraped() for one in wanted)

    all_of_them = len(await cluster.listed())
    await until(lambda: counted(no_owner=0, not_loaded=0))
    for worker in cluster.workers:
        worker.absence = "no module 'x'"
    await until(lambda: counted(no_owner=0, not_loaded=all_of_them))
    await cluster.master.coordinator.transact((), (), [worker_key(one.worker) for one in cluster.workers])
    await until(lambda: counted(no_owner=all_of_them, not_loaded=0))


@pytest.mark.paper(section="7.1")
async def test_intervals_move_from_a_loaded_worker_to_an_idle_one(cluster: Cluster) -> None:
    loaded, idle = cluster.workers
    costs = {one.interval.journal: 0.4 for one in await owned_by(cluster, loaded)}
    for worker in cluster.workers:
        worker.busy, worker.costs = 0.0, costs

    async def has_moved() -> bool:
        there = {one.interval.journal for one in await owned_by(cluster, idle)}
        return len(there & costs.keys()) == len(costs) // 2

    await until(has_moved)
    assert any(request.DESCRIPTOR.name == "PrepareOpenRequest" for request in idle.received), "it was notified before"


@pytest.mark.parametrize("limits", [replace(AT_ONCE, on=False)])
async def test_with_balancing_off_only_operators_move_intervals(cluster: Cluster) -> None:
    for worker in cluster.workers:
        worker.busy, worker.sample = 0.7, {b"cat": 0.5, b"dog": 0.5}
    before = [one.interval for one in await cluster.listed()]
    await asyncio.sleep(0.5)
    assert [one.interval for one in await cluster.listed()] == before
    assert len(await cluster.client.split_interval(wire.IntervalName(journal=before[0].journal))) == 2
    assert 'interval_operations_total{by="operator",kind="split",outcome="done"} 1.0' in cluster.scraped()


async def test_an_unresponsive_worker_is_neither_relieved_nor_loaded(cluster: Cluster) -> None:
    book = cluster.master.book

    async def all_told() -> bool:
        return set(book.workers) == {"w1", "w2"}

    await until(all_told)
    assert all(reported.load.cpu == 0.2 for reported in book.workers.values())
