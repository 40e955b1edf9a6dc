"""A real shard's service with gates. Tests can make it wait and restart it, and see its requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shard import AuthorityShard
from tests.authority.shard import JOURNAL
from tests.faulty_store import FaultyStore


class GatedAuthority(WatermarkServicer):
    """Receives reports, accepts and broadcasts while the gate for that is set."""

    def __init__(self, store: FaultyStore, open_shard: AuthorityShard) -> None:
        super().__init__(open_shard)
        self.open_shard = open_shard
        self.store = store
        self.hearing, self.accepting, self.broadcasting = gates = [asyncio.Event() for _ in range(3)]
        for gate in gates:
            gate.set()
        self.sequencers: dict[str, int] = {}
        """The sequencers that were offered, by process."""
        self.expected: dict[str, list[str]] = {}
        self.as_of: list[int] = []
        self.reported: asyncio.Queue[list[str]] = asyncio.Queue()
        self.removed: asyncio.Queue[str] = asyncio.Queue()
        self._sequencer = 1

    async def start_again(self) -> None:
        """Crash, and start again from the journal."""
        await self.open_shard.close()
        self._sequencer += 1
        self.open_shard = self._shards = await AuthorityShard.open(self.store, JOURNAL, self._sequencer)

    async def WatchWatermarks(self, request: Any, context: Any) -> Any:
        async for response in super().WatchWatermarks(request, context):
            await self.broadcasting.wait()
            yield response

    async def Report(self, request_iterator: Any, context: Any) -> Any:
        """Receive each report once the gate for that is set."""

        async def received() -> AsyncIterator[Any]:
            async for request in request_iterator:
                await self.hearing.wait()
                yield request

        async for response in super().Report(received(), context):
            yield response

    async def AcceptSequencer(self, request: Any, context: Any) -> Any:
        self.sequencers[request.process] = request.sequencer
        await self.accepting.wait()
        return await super().AcceptSequencer(request, context)

    async def ExpectInjectors(self, request: Any, context: Any) -> Any:
        assert not self.sequencers or request.stream in self.expected, "expected before the first is accepted"
        self.expected[request.stream] = list(request.processes)
        self.as_of.append(request.as_of_revision)
        self.reported.put_nowait(list(request.processes))
        return await super().ExpectInjectors(request, context)

    async def RemoveGroup(self, request: Any, context: Any) -> Any:
        self.removed.put_nowait(request.group)
        return await super().RemoveGroup(request, context)


@asynccontextmanager
async def gated_authority() -> AsyncIterator[GatedAuthority]:
    """A gated authority with its own store."""
    store = FaultyStore()
    await store.create_journal(JOURNAL)
    made = GatedAuthority(store, await AuthorityShard.open(store, JOURNAL, 1))
    try:
        yield made
    finally:
        await made.open_shard.close()
