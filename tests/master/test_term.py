"""A term answers every request: before it has read the catalog, while it lasts, and when it ends (7.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from millwheel.coordination.contract import Compare, PrefixSnapshot, Put, TransactionResult
from millwheel.coordination.election import Election
from millwheel.master.messages import DrainTopology, Progress, SubmitTopology
from millwheel.master.settings import MasterSettings
from millwheel.master.term import Term
from millwheel.model.catalog import Catalog
from millwheel.rpc.clock import wall_now
from millwheel.rpc.failures import NOT_LEADING, RequestError
from millwheel.store.memory import MemoryStore
from tests.coordination.memory import MemoryCoordinator
from tests.patience import patience

from .harness import topology


class HeldCoordinator(MemoryCoordinator):
    """A coordinator whose reads or transactions wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.lists, self.takes = asyncio.Event(), asyncio.Event()
        self.asked = asyncio.Event()

    async def list(self, prefix: str) -> PrefixSnapshot:
        if not prefix:
            await self.lists.wait()
        return await super().list(prefix)

    async def transact(
        self, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TransactionResult:
        if any(not put.lease for put in puts):
            self.asked.set()
            await self.takes.wait()
        return await super().transact(compares, puts, deletes)


class Looks:
    """Counts the checks of draining topologies."""

    def __init__(self) -> None:
        self.count = 0
        self.twice = asyncio.Event()

    async def look(self, known: Catalog, name: str) -> Progress:
        self.count += 1
        if self.count == 2:
            self.twice.set()
        return Progress(name, {}, {})


async def forget(known: Catalog, computation: str, sequencer: int) -> None:
    raise AssertionError(f"nothing has been removed, and {computation} is to be forgotten")


@asynccontextmanager
async def leading(coordinator: HeldCoordinator, looks: Looks) -> AsyncIterator[tuple[Term, asyncio.Task[None]]]:
    leadership = await Election(coordinator, "leader", "m1", ttl=5.0).campaign()
    term = Term(leadership, coordinator, MemoryStore(), MasterSettings(), looks.look, forget, wall_now)
    running = asyncio.create_task(term.run())
    try:
        yield term, running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await leadership.resign()


@pytest.mark.guarantee("G11", section="7.1")
async def test_a_term_is_ready_when_it_has_read_the_catalog() -> None:
    coordinator = HeldCoordinator()
    async with leading(coordinator, Looks()) as (term, _):
        ready = asyncio.create_task(term.ready())
        for _turn in range(20):
            await asyncio.sleep(0)
        assert not ready.done()
        coordinator.lists.set()
        async with asyncio.timeout(patience(10)):
            await ready


@pytest.mark.guarantee("G8", section="7.1")
async def test_what_a_term_was_asked_is_refused_when_it_ends() -> None:
    coordinator = HeldCoordinator()
    coordinator.lists.set()
    async with leading(coordinator, Looks()) as (term, running):
        await term.ready()
        waiting = asyncio.create_task(term.ask(SubmitTopology(topology(), "r1")))
        await coordinator.asked.wait()
        running.cancel()
        async with asyncio.timeout(patience(2)):
            with pytest.raises(RequestError) as caught:
                await waiting
            assert caught.value.reason == NOT_LEADING
            with pytest.raises(RequestError) as caught:
                await term.ask(SubmitTopology(topology(), "r2"))
            assert caught.value.reason == NOT_LEADING


@pytest.mark.guarantee("G8", section="7.1")
async def test_a_draining_topology_is_looked_at_again_and_again() -> None:
    coordinator, looks = HeldCoordinator(), Looks()
    coordinator.lists.set()
    coordinator.takes.set()
    async with leading(coordinator, looks) as (term, _):
        await term.ready()
        await term.ask(SubmitTopology(topology(), "r1"))
        await term.ask(DrainTopology("zeitgeist"))
        async with asyncio.timeout(patience(2)):
            await looks.twice.wait()
