"""Measures the time without a leading master, or without an interval's owner, after a death (7.1).

Leases end by the test's clock. The limit is five seconds. The lease of the dead process takes three of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress

import pytest

from millwheel.coordination.contract import (
    Compare,
    CoordinatorUnavailableError,
    KeyChange,
    KeyValue,
    PrefixSnapshot,
    Put,
    TransactionResult,
)
from millwheel.master.messages import CancelTopology, SubmitTopology
from millwheel.master.replica import MasterReplica
from millwheel.master.settings import MasterSettings
from millwheel.model.catalog import Catalog
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.store.memory import MemoryStore
from tests.coordination.memory import MemoryCoordinator, read_catalog
from tests.master.replica import register_worker, replica
from tests.patience import patience, until

from .harness import topology

LEASE = 3.0
SETTINGS = MasterSettings(intervals_per_computation=50)


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Line:
    """One process's connection to a coordinator. A kill of the process cuts it in both directions."""

    def __init__(self, coordinator: MemoryCoordinator) -> None:
        self._coordinator = coordinator
        self._cut = asyncio.Event()

    def cut(self) -> None:
        self._cut.set()

    def _check(self) -> None:
        if self._cut.is_set():
            raise CoordinatorUnavailableError("this process is dead")

    async def get(self, key: str) -> KeyValue | None:
        self._check()
        return await self._coordinator.get(key)

    async def list(self, prefix: str) -> PrefixSnapshot:
        self._check()
        return await self._coordinator.list(prefix)

    async def transact(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TransactionResult:
        self._check()
        return await self._coordinator.transact(compares, puts, deletes)

    async def watch(self, prefix: str, after: int) -> AsyncIterator[tuple[KeyChange, ...]]:
        async for changes in self._coordinator.watch(prefix, after):
            self._check()
            yield changes

    async def grant_lease(self, ttl: float) -> int:
        self._check()
        return await self._coordinator.grant_lease(ttl)

    async def keep_alive(self, lease: int) -> None:
        self._check()
        await self._coordinator.keep_alive(lease)

    async def revoke_lease(self, lease: int) -> None:
        self._check()
        await self._coordinator.revoke_lease(lease)

    async def close(self) -> None:
        """Do nothing: the test closes the coordinator."""


async def let_pass(clock: Clock, coordinator: MemoryCoordinator, seconds: float) -> None:
    clock.now += seconds
    await coordinator.expire_leases()


def owners(known: Catalog) -> set[str]:
    return {one.owner.worker_id for interval_map in known.maps.values() for one in interval_map}


async def until_owned_by(coordinator: MemoryCoordinator, expected: set[str]) -> None:
    """No lease ends during this time, because the clock does not advance."""
    await until(lambda: read_catalog(coordinator), patience(5), holds=lambda known: owners(known) == expected)


async def worker(coordinator: MemoryCoordinator, name: str, ttl: float = LEASE) -> int:
    lease = await coordinator.grant_lease(ttl)
    await register_worker(coordinator, name, "127.0.0.1:1", lease)
    return lease


@pytest.mark.paper(section="7.1")
async def test_a_dead_workers_intervals_move_as_soon_as_its_lease_ends() -> None:
    clock, store = Clock(), MemoryStore()
    coordinator = MemoryCoordinator(clock)
    async with replica(coordinator, store, SETTINGS, ttl=1_000.0) as (_, master):
        await master.leading()
        await worker(coordinator, "dead")
        await worker(coordinator, "alive", 1_000.0)
        await master.ask(SubmitTopology(topology(), "r1"))
        before = {one.journal: one.sequencer for interval_map in interval_maps(master) for one in interval_map}
        await let_pass(clock, coordinator, LEASE - 0.1)
        assert owners(await read_catalog(coordinator)) == {"dead", "alive"}
        await let_pass(clock, coordinator, 0.1)
        await until_owned_by(coordinator, {"alive"})
        known = await read_catalog(coordinator)
        moved = [
            one for interval_map in known.maps.values() for one in interval_map if one.sequencer != before[one.journal]
        ]
        assert 45 <= len(moved) <= 60
        assert all(one.sequencer > before[one.journal] for one in moved)
    await coordinator.close()


def interval_maps(master: MasterReplica) -> list[list[catalog.IntervalRecord]]:
    known = master.catalog
    assert known is not None
    return [list(interval_map) for interval_map in known.maps.values()]


@pytest.mark.paper(section="7.1")
async def test_a_standby_leads_as_soon_as_the_dead_leaders_lease_ends() -> None:
    clock, store = Clock(), MemoryStore()
    coordinator = MemoryCoordinator(clock)
    line = Line(coordinator)
    async with AsyncExitStack() as stack:
        _, leader = await stack.enter_async_context(replica(line, store, SETTINGS, ttl=LEASE))
        await leader.leading()
        _, standby = await stack.enter_async_context(replica(coordinator, store, SETTINGS, ttl=LEASE))
        await worker(coordinator, "dead")
        await worker(coordinator, "alive", 1_000.0)
        await leader.ask(SubmitTopology(topology(), "r1"))
        line.cut()
        await let_pass(clock, coordinator, LEASE - 0.1)
        with suppress(TimeoutError):
            await asyncio.wait_for(standby.leading(), 0.3)
        assert not standby.leads, "the leader may only be slow"
        # A worker dies while no master leads. The next leader finds its intervals.
        await let_pass(clock, coordinator, 0.1)
        async with asyncio.timeout(patience(5)):
            await standby.leading()
        await until_owned_by(coordinator, {"alive"})
        record = await standby.ask(CancelTopology("zeitgeist"))
        assert isinstance(record, catalog.TopologyRecord)
        assert record.state == catalog.TOPOLOGY_STATE_CANCELLED
    await coordinator.close()
