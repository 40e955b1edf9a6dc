"""JournalHoldService: a snapshot pins and freezes journals that this process owns (docs/decisions/0034-snapshots.md).

Each hold ends by itself, by this process's clock. So no other process can keep an interval from its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from millwheel.rpc.errors import answering
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.rpc.v1.snapshot_pb2_grpc import JournalHoldServiceServicer
from millwheel.worker.messages import Freeze, PinJournal, SnapshotEvent, SnapshotHoldAnswer, Thaw, UnpinJournal
from millwheel.worker.process.host import CoreHost

__all__ = ["MAX_FREEZE_SECONDS", "JournalHoldService"]

MAX_FREEZE_SECONDS: Final = 2.0
"""Maximum seconds for which an interval begins no commit."""
_MAX_PIN_SECONDS: Final = 60.0
"""Maximum seconds for which a truncation point stays. A snapshot that reads for longer pins again."""
_POLL_SECONDS: Final = 0.001
"""How often a journal is asked whether its append has ended. An append takes some milliseconds."""

_Question = Callable[[asyncio.Future[SnapshotHoldAnswer]], SnapshotEvent]


@dataclass(frozen=True, slots=True)
class _HoldKind:
    """One kind of hold: the events that begin and end it, by the snapshot's token."""

    begin: Callable[[str, Any], SnapshotEvent]
    end: Callable[[str], SnapshotEvent]
    max_seconds: float


_PIN: Final = _HoldKind(PinJournal, UnpinJournal, _MAX_PIN_SECONDS)
_FREEZE: Final = _HoldKind(Freeze, lambda token: Thaw(token, asyncio.Future()), MAX_FREEZE_SECONDS)


class JournalHoldService(JournalHoldServiceServicer):
    """Passes the holds of snapshots to the hosts, and ends them in time."""

    def __init__(self, find: Callable[[str, int], CoreHost | None]) -> None:
        """``find``: the host of a journal under a sequencer."""
        self._find = find
        self._ends: dict[tuple[_HoldKind, str], asyncio.TimerHandle] = {}
        """When the newest hold of a kind ends, by its journal."""

    async def PinJournals(self, request: wire.PinJournalsRequest, context: Any) -> wire.PinJournalsResponse:
        """Keep truncation points."""

        async def pin() -> wire.PinJournalsResponse:
            asked = (self._begin(_PIN, request.token, request.hold_ms, owned) for owned in request.journals)
            return wire.PinJournalsResponse(positions=await asyncio.gather(*asked))

        return await answering(context, pin)

    async def UnpinJournals(self, request: wire.UnpinJournalsRequest, context: Any) -> wire.UnpinJournalsResponse:
        """Let truncation points move again. A pin's timer may still ring: then it ends nothing."""

        async def unpin() -> wire.UnpinJournalsResponse:
            for owned in request.journals:
                if (host := self._find(owned.journal, owned.sequencer)) is not None:
                    host.post(UnpinJournal(request.token))
            return wire.UnpinJournalsResponse()

        return await answering(context, unpin)

    async def FreezeJournals(self, request: wire.FreezeJournalsRequest, context: Any) -> wire.FreezeJournalsResponse:
        """Begin no commit."""

        async def freeze() -> wire.FreezeJournalsResponse:
            asked = (self._begin(_FREEZE, request.token, request.hold_ms, owned) for owned in request.journals)
            return wire.FreezeJournalsResponse(positions=await asyncio.gather(*asked))

        return await answering(context, freeze)

    async def ThawJournals(self, request: wire.ThawJournalsRequest, context: Any) -> wire.ThawJournalsResponse:
        """Go on, and say which journals stood still until now."""

        async def thaw() -> wire.ThawJournalsResponse:
            asked = (self._ask(owned, partial(Thaw, request.token)) for owned in request.journals)
            return wire.ThawJournalsResponse(positions=await asyncio.gather(*asked))

        return await answering(context, thaw)

    async def _begin(self, kind: _HoldKind, token: str, hold_ms: int, owned: wire.JournalOwner) -> wire.JournalPosition:
        """Begin a hold, and wait until nothing from before it is in flight, for as long as the hold lasts."""
        loop = asyncio.get_running_loop()
        until = loop.time() + min(hold_ms / 1e3, kind.max_seconds)
        if (timer := self._ends.pop((kind, owned.journal), None)) is not None:
            timer.cancel()
        self._ends[kind, owned.journal] = loop.call_at(until, self._end, kind, token, owned)
        while True:
            position = await self._ask(owned, partial(kind.begin, token))
            if position.settled or not position.held or loop.time() + _POLL_SECONDS >= until:
                return position
            await asyncio.sleep(_POLL_SECONDS)

    def _end(self, kind: _HoldKind, token: str, owned: wire.JournalOwner) -> None:
        self._ends.pop((kind, owned.journal), None)
        if (host := self._find(owned.journal, owned.sequencer)) is not None:
            host.post(kind.end(token))

    async def _ask(self, owned: wire.JournalOwner, question: _Question) -> wire.JournalPosition:
        host = self._find(owned.journal, owned.sequencer)
        answer = None if host is None else await host.hold(question)
        if answer is None:
            return wire.JournalPosition(journal=owned.journal, sequencer=owned.sequencer)
        return wire.JournalPosition(
            journal=owned.journal,
            sequencer=owned.sequencer,
            held=answer.held,
            settled=answer.settled,
            commit=answer.commit,
        )
