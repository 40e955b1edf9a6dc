"""Candidates for the authority's shards in one process, each with a server and a line to the coordinator of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import grpc

from millwheel.authority.candidate import Candidate, CandidateSettings
from millwheel.authority.placement import PlacementDelays
from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shard import ShardSettings
from millwheel.client.shards import ShardedWatermarks
from millwheel.coordination.contract import Change, Coordinator, CoordinatorUnavailableError
from millwheel.coordination.memory import MemoryCoordinator
from millwheel.model.catalog import Catalog, shard_of
from millwheel.rpc.failures import authority_is_away
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server
from millwheel.rpc.watermarks import WatermarkReport
from millwheel.store.contract import StateStore
from millwheel.store.memory import MemoryStore
from tests.patience import patience

__all__ = ["QUICK", "Group", "Line", "Process", "group"]

QUICK = CandidateSettings(
    lease=0.6, poll=0.05, delays=PlacementDelays(0.15, 0.5, 0.1, 1.0), shard=ShardSettings(verify=0.3)
)


class Line:
    """One process's way to a coordinator. ``cut``: nothing gets through, and is said not to.

    ``asleep``: nothing gets through, nor is that noticed: renewals seem to go well, all else takes for ever. So stands
    a process that is paused right after it made sure that it leads.
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

    async def watch(self, prefix: str, after: int) -> AsyncIterator[tuple[Change, ...]]:
        await self._pass()
        async for changes in self._coordinator.watch(prefix, after):
            await self._pass()
            yield changes

    async def close(self) -> None:
        """Its owner's."""


@dataclass
class Process:
    """One candidate with its server."""

    line: Line
    candidate: Candidate
    server: grpc.aio.Server
    address: str
    task: asyncio.Task[None]

    async def kill(self) -> None:
        """End it without a word to anybody, as SIGKILL does."""
        self.line.cut = True
        await self.server.stop(None)
        await self.stop()

    async def stop(self) -> None:
        """End it in order."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.server.stop(None)


class Group:
    """Candidates for some shards; also where the shards are, as the coordinator says (ShardPlaces)."""

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

    def shard_of(self, computation: str) -> Hashable:
        return shard_of(computation, self.shards)

    async def address_of(self, shard: Hashable) -> str:
        assert isinstance(shard, int)
        found = (await self.served()).get(shard)
        if found is None:
            raise authority_is_away(f"shard {shard}")
        return found

    async def served(self) -> dict[int, str]:
        """Where each shard is, for whoever asks the coordinator."""
        known = Catalog()
        known.load(await self.coordinator.list(""))
        return {shard: record.endpoint.address for shard, record in known.authorities.items()}

    async def until(self, holds: Callable[[dict[int, str]], bool]) -> None:
        """Return once the coordinator says so."""
        async with asyncio.timeout(patience(10)):
            while not holds(await self.served()):  # noqa: ASYNC110 all kinds of changes are waited for
                await asyncio.sleep(0.01)

    def names(self, shard: int, count: int = 1) -> list[str]:
        """Computations that a shard keeps."""
        return [name for number in range(1_000) if shard_of(name := f"c.{number}", self.shards) == shard][:count]


@asynccontextmanager
async def group(
    shards: int, processes: int, settings: CandidateSettings = QUICK, store: StateStore | None = None
) -> AsyncIterator[Group]:
    """Candidates that have begun; stopped at the end."""
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
