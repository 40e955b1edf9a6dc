"""Calls to the workers that own the journals of a topology: one call to each worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from uuid import uuid4

import grpc

from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.rpc.v1.snapshot_pb2_grpc import JournalHoldServiceStub
from millwheel.snapshots.cut import Positions
from millwheel.store.contract import JournalHead, StateStore

__all__ = ["MixedOwners", "WorkerOwners"]

_FREEZE_MS: Final = 1_000
"""For how long an owner stands still if nothing lets it go on."""
_PIN_MS: Final = 30_000
_PIN_AGAIN_SECONDS: Final = 8.0
_DEADLINE_SECONDS: Final = 5.0
_FREEZE_DEADLINE_SECONDS: Final = _FREEZE_MS / 1e3 + 0.5


class WorkerOwners:
    """The owners of journals, as the catalog names them at one moment.

    A worker that cannot be reached gives no answer: its journals are missing in what the calls return.
    """

    def __init__(
        self, channel_to: Callable[[str], grpc.aio.Channel], intervals: Iterable[catalog.IntervalRecord]
    ) -> None:
        """``channel_to``: the channel to an address. Each of the ``intervals`` has an owner."""
        self._token = uuid4().hex
        self._channel_to = channel_to
        self._journals: dict[str, list[wire.JournalOwner]] = {}
        """By the address of their owner."""
        self.sequencers: dict[str, int] = {}
        """The sequencer of each journal's owner."""
        for one in intervals:
            owned = wire.JournalOwner(journal=one.journal, sequencer=one.sequencer)
            self._journals.setdefault(one.owner.address, []).append(owned)
            self.sequencers[one.journal] = one.sequencer

    async def pin(self) -> Positions:
        """Keep the truncation points of all journals, for half a minute."""

        def call(stub: Any, journals: list[wire.JournalOwner]) -> Any:
            request = wire.PinJournalsRequest(token=self._token, journals=journals, hold_ms=_PIN_MS)
            return stub.PinJournals(request, timeout=_DEADLINE_SECONDS)

        return await self._ask_all(call)

    async def keep_pinned(self) -> None:
        """Pin again and again, until cancelled."""
        while True:
            await asyncio.sleep(_PIN_AGAIN_SECONDS)
            await self.pin()

    async def unpin(self) -> None:
        """Let the truncation points move again."""

        def call(stub: Any, journals: list[wire.JournalOwner]) -> Any:
            request = wire.UnpinJournalsRequest(token=self._token, journals=journals)
            return stub.UnpinJournals(request, timeout=_DEADLINE_SECONDS)

        await self._ask_all(call)

    async def freeze(self) -> Positions:
        """Ask all owners to begin no commit."""

        def call(stub: Any, journals: list[wire.JournalOwner]) -> Any:
            request = wire.FreezeJournalsRequest(token=self._token, journals=journals, hold_ms=_FREEZE_MS)
            return stub.FreezeJournals(request, timeout=_FREEZE_DEADLINE_SECONDS)

        return await self._ask_all(call)

    async def thaw(self) -> Positions:
        """Ask all owners to go on."""

        def call(stub: Any, journals: list[wire.JournalOwner]) -> Any:
            return stub.ThawJournals(
                wire.ThawJournalsRequest(token=self._token, journals=journals), timeout=_DEADLINE_SECONDS
            )

        return await self._ask_all(call)

    async def _ask_all(self, call: Callable[[Any, list[wire.JournalOwner]], Any]) -> Positions:
        asked = (self._ask(address, journals, call) for address, journals in self._journals.items())
        answers = await asyncio.gather(*asked)
        return {one.journal: one for positions in answers for one in positions}

    async def _ask(
        self,
        address: str,
        journals: list[wire.JournalOwner],
        call: Callable[[Any, list[wire.JournalOwner]], Any],
    ) -> list[wire.JournalPosition]:
        try:
            answer = await call(JournalHoldServiceStub(self._channel_to(address)), journals)
        except grpc.aio.AioRpcError:
            return []
        return list(getattr(answer, "positions", ()))


class MixedOwners:
    """The owners of some journals, and other journals without owners: those of a paused or drained topology.

    A journal without an owner answers by its head. A former owner that does not know that it was released may still
    append. Then the two answers differ, or the cut finds another sequencer.
    """

    def __init__(self, workers: WorkerOwners, store: StateStore, resting: Mapping[str, JournalHead]) -> None:
        """``resting``: the journals without owners, with their heads."""
        self._workers = workers
        self._store = store
        self._resting = {journal: head.sequencer for journal, head in resting.items()}
        self.sequencers: dict[str, int] = workers.sequencers | self._resting

    async def freeze(self) -> Positions:
        """Ask all owners to begin no commit. Returns where each journal stands."""
        return {**await self._workers.freeze(), **await self._read()}

    async def thaw(self) -> Positions:
        """Ask all owners to go on. Returns where each journal stood."""
        read = await self._read()
        return {**await self._workers.thaw(), **read}

    async def _read(self) -> dict[str, wire.JournalPosition]:
        found: dict[str, wire.JournalPosition] = {}
        for journal in self._resting:
            head = await self._store.read_head(journal)
            found[journal] = wire.JournalPosition(
                journal=journal, sequencer=head.sequencer, held=True, settled=True, commit=head.commit
            )
        return found
