"""Authority shards that fail over: candidates, zombies, and clients that follow (7.2; G4, G7, G8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import grpc
import pytest

from millwheel.authority.candidate import SHARD_ELSEWHERE, Candidate, CandidateSettings
from millwheel.authority.placement import PlacementDelays
from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shard import ShardSettings
from millwheel.client.shards import ShardedWatermarks
from millwheel.client.watermarks import WatermarkClient
from millwheel.coordination.contract import Coordinator, CoordinatorUnavailableError, KeyChange
from millwheel.model.catalog import shard_of
from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.failures import RequestError, authority_is_away
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server
from millwheel.rpc.watermarks import BroadcastUpdate, WatermarkReport
from millwheel.store.contract import JournalHead, StateStore, StoreUnavailableError
from millwheel.store.memory import MemoryStore
from tests.coordination.memory import MemoryCoordinator, read_catalog
from tests.patience import patience, until

QUICK = CandidateSettings(
    lease=0.6, poll=0.05, delays=PlacementDelays(0.15, 0.5, 0.1, 1.0), shard=ShardSettings(verify=0.3)
)


class Line:
    """One process's connection to a coordinator. ``cut``: every call fails.

    ``asleep``: renewals seem to succeed, and all other calls hang. That is the state of a process which is paused right
    after it has checked that it leads.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.cut = False
        self.asleep = False

    async def _pass(self) -> None:
        while self.asleep:  # noqa: ASYNC110 a pause has no event
            await asyncio.sleep(0.01)
        if self.cut:
            raise CoordinatorUnavailableError("the line is cut")

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._coordinator, name)

        async def passed(*arguments: Any) -> Any:
            if name == "keep_alive" and self.asleep:
                return None
            await self._pass()
            return await call(*arguments)

        return passed

    async def watch(self, prefix: str, after: int) -> AsyncIterator[tuple[KeyChange, ...]]:
        await self._pass()
        async for changes in self._coordinator.watch(prefix, after):
            await self._pass()
            yield changes

    async def close(self) -> None:
        """Close the client of its owner."""


@dataclass
class Process:
    """One candidate with its server."""

    line: Line
    candidate: Candidate
    server: grpc.aio.Server
    address: str
    task: asyncio.Task[None]

    async def kill(self) -> None:
        """End it without notice, as SIGKILL does."""
        self.line.cut = True
        await self.server.stop(None)
        await self.stop()

    async def stop(self) -> None:
        """End it in order."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.server.stop(None)


class Group:
    """Candidates for some shards. Also ShardAddresses: the shards' addresses in the coordinator."""

    def __init__(self, shards: int, settings: CandidateSettings, store: StateStore | None = None) -> None:
        self.shards = shards
        self.coordinator = MemoryCoordinator()
        self.store = store or MemoryStore()
        self.processes: list[Process] = []
        self.refused: list[WatermarkReport] = []
        self._settings = settings

    async def start(self, settings: CandidateSettings | None = None) -> Process:
        """One more process."""
        server = create_server()
        address = bind(server)
        line = Line(self.coordinator)
        candidate = Candidate(cast("Coordinator", line), self.store, address, self.shards, settings or self._settings)
        add_WatermarkServiceServicer_to_server(WatermarkServicer(candidate), server)
        await server.start()
        made = Process(line, candidate, server, address, asyncio.create_task(candidate.run()))
        self.processes.append(made)
        return made

    def client(self) -> ShardedWatermarks:
        """A client that follows the shards."""
        return ShardedWatermarks(self, on_refused=self.refused.append)

    def shard_of(self, group: str) -> Hashable:
        return shard_of(group, self.shards)

    async def address_of(self, shard: Hashable) -> str:
        assert isinstance(shard, int)
        found = (await self.served()).get(shard)
        if found is None:
            raise authority_is_away(f"shard {shard}")
        return found

    async def served(self) -> dict[int, str]:
        """The address of each shard, as any client of the coordinator reads it."""
        known = await read_catalog(self.coordinator)
        return {shard: record.endpoint.address for shard, record in known.authorities.items()}

    async def until(self, holds: Callable[[dict[int, str]], bool]) -> None:
        """Return when the coordinator has this."""
        await until(self.served, patience(10), holds=holds)

    def names(self, shard: int, count: int = 1) -> list[str]:
        """Names of groups of one shard."""
        return [name for number in range(1_000) if shard_of(name := f"c.{number}", self.shards) == shard][:count]


@asynccontextmanager
async def group(
    shards: int, processes: int, settings: CandidateSettings = QUICK, store: StateStore | None = None
) -> AsyncIterator[Group]:
    """Start candidates. The block stops them at its end."""
    made = Group(shards, settings, store)
    try:
        for _ in range(processes):
            await made.start()
        yield made
    finally:
        for process in made.processes:
            process.line.asleep = False
        await asyncio.gather(*(process.stop() for process in made.processes))
        await made.coordinator.close()


def said(group: str, watermark: int, sequencer: int = 1) -> WatermarkReport:
    return WatermarkReport(group, ALL_KEYS, sequencer, watermark, watermark)


async def reaches(updates: AsyncIterator[dict[str, BroadcastUpdate]], known: dict[str, int], **wanted: int) -> None:
    """Take updates until ``known`` is as wanted. No value may go back (G7)."""
    aims = {name.replace("_", "."): value for name, value in wanted.items()}
    async with asyncio.timeout(patience(20)):
        while any(known.get(name) != value for name, value in aims.items()):
            for name, news in (await anext(updates)).items():
                assert news.watermark >= known.get(name, MIN_TIMESTAMP), f"{name} went back"
                known[name] = news.watermark


@pytest.mark.guarantee("G8", section="7.2")
async def test_a_killed_candidates_shard_is_served_by_the_other() -> None:
    usual = CandidateSettings(lease=3.0)
    async with group(2, 2, usual) as them:
        await them.until(lambda served: len(set(served.values())) == 2)
        first, second = them.processes
        assert first.candidate.serving != second.candidate.serving
        await first.kill()
        await them.until(lambda served: list(served.values()) == [second.address] * 2)
        assert second.candidate.serving == (0, 1)


@pytest.mark.paper(section="7.2")
async def test_one_that_comes_back_is_given_a_shard_and_values_stay() -> None:
    async with group(2, 1) as them, them.client() as client:
        await them.until(lambda served: len(served) == 2)
        (zero,), (one,) = them.names(0), them.names(1)
        for name in (zero, one):
            await client.accept(name, ALL_KEYS, 1)
            client.client_for(name).reports.report(said(name, 5))
        async with aclosing(client.watch([zero, one])) as updates:
            known: dict[str, int] = {}
            await reaches(updates, known, **{zero.replace(".", "_"): 5, one.replace(".", "_"): 5})
            await them.start()
            await them.until(lambda served: len(set(served.values())) == 2)
            client.client_for(zero).reports.report(said(zero, 7))
            client.client_for(one).reports.report(said(one, 8))
            await reaches(updates, known, **{zero.replace(".", "_"): 7, one.replace(".", "_"): 8})
    assert not them.refused


@pytest.mark.guarantee("G7", section="4.5")
async def test_a_watch_never_goes_back_through_kills_and_late_data() -> None:
    async with group(1, 2) as them, them.client() as client:
        await them.until(lambda served: len(served) == 1)
        (name,) = them.names(0)
        await client.accept(name, ALL_KEYS, 1)
        async with aclosing(client.watch([name])) as updates:
            known: dict[str, int] = {}
            for life in range(1, 4):
                client.client_for(name).reports.report(said(name, life * 10))
                await reaches(updates, known, **{name.replace(".", "_"): life * 10})
                serving = next(one for one in them.processes if one.candidate.serving)
                await serving.kill()
                client.client_for(name).reports.report(
                    said(name, life * 10 - 5)
                )  # late data: the interval itself is held further back
                await them.start()
                await them.until(lambda served, old=serving.address: list(served.values()) not in ([], [old]))  # type: ignore[misc]
                assert await client.accept(name, ALL_KEYS, 1) == life * 10, "what was broadcast is known to the next"
    assert not them.refused


@pytest.mark.guarantee("G4", "G7", section="6.2")
async def test_a_woken_zombie_publishes_nothing_and_reporters_leave_it() -> None:
    unaware = replace(QUICK, shard=ShardSettings(verify=60.0))
    async with group(1, 1, unaware) as them, them.client() as client:
        await them.until(lambda served: len(served) == 1)
        (zombie,) = them.processes
        (name,) = them.names(0)
        await client.accept(name, ALL_KEYS, 1)
        client.client_for(name).reports.report(said(name, 10))
        async with aclosing(client.watch([name])) as updates:
            known: dict[str, int] = {}
            await reaches(updates, known, **{name.replace(".", "_"): 10})
            zombie.line.asleep = True
            successor = await them.start()
            await them.until(lambda served: list(served.values()) == [successor.address])
            assert zombie.candidate.serving == (0,), "it does not know yet"

            # Only the successor knows this owner's sequencer: the zombie would accept the old owner's reports.
            async with WatermarkClient(successor.address, on_refused=them.refused.append) as other:
                await other.accept(name, ALL_KEYS, 2)
            open_shard = zombie.candidate.shard_for(name)
            received = open_shard.broadcasts.watch([name])
            assert (await anext(received))[name].watermark == 10
            stale = said(name, 1_000)
            stale.number = 99
            await open_shard.report([stale])
            with pytest.raises(RequestError, match="deposed"):
                await anext(received)
            zombie.line.asleep = False
            await them.until(lambda served: zombie.candidate.serving == () and served[0] == successor.address)
            # The old owner's reports reach the successor, who refuses them.
            await until(lambda: them.refused, patience(10))
            assert known[name] == 10


@pytest.mark.guarantee("G8", section="7.2")
async def test_a_watcher_of_a_paused_process_learns_of_its_successor() -> None:
    unaware = replace(QUICK, shard=ShardSettings(verify=60.0))
    async with group(1, 1, unaware) as them, them.client() as listener:
        await them.until(lambda served: len(served) == 1)
        (paused,) = them.processes
        (name,) = them.names(0)
        async with aclosing(listener.watch([name])) as updates:
            await anext(updates)
            paused.line.asleep = True
            successor = await them.start()
            await them.until(lambda served: list(served.values()) == [successor.address])
            async with WatermarkClient(successor.address, on_refused=them.refused.append) as owner:
                await owner.accept(name, ALL_KEYS, 1)
                owner.report(said(name, 7))
                await reaches(updates, {}, **{name.replace(".", "_"): 7})
            assert paused.candidate.serving == (0,), "the paused one still knows of nothing"


@pytest.mark.paper(section="7.2")
async def test_a_candidate_whose_lease_ended_stops_and_competes_again() -> None:
    async with group(1, 1) as them:
        await them.until(lambda served: len(served) == 1)
        (process,) = them.processes
        process.line.cut = True
        await them.until(lambda served: not served and not process.candidate.serving)
        with pytest.raises(RequestError, match="has no server"):
            process.candidate.shard_for(them.names(0)[0])
        process.line.cut = False
        await them.until(lambda served: list(served.values()) == [process.address])
        assert process.candidate.serving == (0,)


@pytest.mark.guarantee("G4", section="7.2")
async def test_of_racing_candidates_one_serves_and_the_others_stand_by() -> None:
    hasty = CandidateSettings(lease=0.6, poll=0.01, delays=PlacementDelays(patience=0.0, settle=60.0))
    async with group(3, 4, hasty) as them:
        for _ in range(3):
            await them.until(lambda served: len(served) == 3)
            for shard, address in (await them.served()).items():
                having = [one.address for one in them.processes if shard in one.candidate.serving]
                assert having == [address]
            killed = next(one for one in them.processes if one.candidate.serving)
            await killed.kill()
            await them.start()
            await them.until(lambda served, gone=killed.address: gone not in served.values())  # type: ignore[misc]


async def test_a_call_to_the_wrong_process_gets_the_shards_address() -> None:
    async with group(2, 2) as them:
        await them.until(lambda served: len(set(served.values())) == 2)
        served = await them.served()
        (name,) = them.names(0)
        async with WatermarkClient(served[1], on_refused=them.refused.append) as wrong:
            await _until_known(them, served)
            with pytest.raises(RequestError, match=f"authority shard 0.*{served[0]}") as failure:
                await wrong.explain(name)
            assert failure.value.reason == SHARD_ELSEWHERE
            with pytest.raises(RequestError, match="authority shard 0"):
                await wrong.accept(name, ALL_KEYS, 1, patience=0.1)


async def _until_known(them: Group, served: dict[int, str]) -> None:
    """Wait until the process that serves shard 1 has seen where shard 0 is."""
    process = next(one for one in them.processes if one.address == served[1])
    for _ in range(1_000):
        with pytest.raises(RequestError) as failure:
            process.candidate.shard_for(them.names(0)[0])
        if failure.value.leader == served[0]:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never learned of the other")


class Unopened(MemoryStore):
    """A store in which some processes cannot open a journal for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 3

    async def fence(self, journal: str, sequencer: int) -> JournalHead:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("the node is down")
        return await super().fence(journal, sequencer)


@pytest.mark.guarantee("G8")
async def test_a_store_that_is_away_for_a_while_is_waited_for() -> None:
    store = Unopened()
    async with group(1, 1, QUICK, store) as them:
        await them.until(lambda served: len(served) == 1)
        assert store.failures == 0
