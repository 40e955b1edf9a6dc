"""One interval on a store, without a server. Each effect is performed before the next event."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.sdk.compiled import compile_computation
from millwheel.store.contract import StateStore
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.interval import IntervalConfig, IntervalCore, IntervalSettings
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    AnswerDelivery,
    Appended,
    AppendEntry,
    DeleteEntries,
    DeleteParts,
    Delivery,
    FenceJournal,
    FlushStates,
    GroupWatermarks,
    Opened,
    PartsWritten,
    ReadStates,
    Report,
    Started,
    StatesFlushed,
    StatesRead,
    Tick,
    WriteParts,
)

__all__ = ["IntervalOwner"]

_GROUP: Final = "injector/in"
_SENDER: Final = Sender("injector/in/p", 1, None, _GROUP)
_COMPUTATION, _JOURNAL = IncarnationId("measured.1"), "measured.1.j1"


class IntervalOwner:
    """The owner of all keys of a computation of the stream ``in``. Productions go nowhere."""

    def __init__(
        self,
        computation: mw.Computation[Any, Any],
        record_type: Any,
        key: Any,
        store: StateStore,
        settings: IntervalSettings,
    ) -> None:
        topology = mw.Topology("measured")
        topology.source("in", record_type)
        topology.add(computation, name="measured", inputs={"in": key})
        config = IntervalConfig(_COMPUTATION, _JOURNAL, ALL_KEYS, 1, frozenset({_GROUP}), {}, settings=settings)
        self.core = IntervalCore(config, compile_computation(topology, "measured"), {}, lambda consumer, key: "")
        self.store = store
        self.now = 1_000_000
        self.position = 0
        self.journaled = self.rows_read = 0

    async def open(self) -> None:
        """Take the interval over."""
        await self.store.create_journal(_JOURNAL)
        await self.post(Started())

    async def deliver(self, keys: list[bytes], values: list[bytes], timestamps: list[int]) -> None:
        """Deliver encoded records in one batch, and wait until they are committed."""
        count = len(values)
        ids = PositionIds("in/p", self.position, list(range(self.position, self.position + count)))
        self.position += count
        await self.post(Delivery(_COMPUTATION, _JOURNAL, "in", _SENDER, ids, keys, values, timestamps, self.position))

    async def advance(self, watermark: int) -> None:
        """The low watermark of the stream rises. Due timers fire."""
        await self.post(GroupWatermarks({_GROUP: watermark}))

    async def rest(self) -> None:
        """Time passes: rows are written, and the cache shrinks."""
        for _ in range(3):
            self.now += 70_000_000
            await self.post(Tick())

    async def post(self, event: Any) -> None:
        """Bring an event to the core, and perform what follows from it."""
        events = deque([event])
        while events:
            self.now += 10
            for effect in self.core.step(events.popleft(), self.now):
                if (answer := await self._perform(effect)) is not None:
                    events.append(answer)

    async def _perform(self, effect: Any) -> Any:
        store = self.store
        match effect:
            case FenceJournal():
                return Opened(await store.fence(effect.journal, effect.sequencer), {}, [])
            case AcceptSequencer():
                return Accepted(MIN_TIMESTAMP)
            case AppendEntry():
                self.journaled += len(effect.append.entry)
                await store.append(effect.journal, effect.append)
                return Appended(effect.append.commit)
            case FlushStates():
                await store.write_states(effect.incarnation, effect.journal, effect.sequencer, effect.rows)
                return StatesFlushed(effect.number)
            case ReadStates():
                self.rows_read += len(effect.keys)
                return StatesRead(effect.keys, await store.read_states(effect.incarnation, effect.keys))
            case WriteParts():
                for part, blob in effect.parts.items():
                    await store.write_part(effect.journal, part, blob)
                return PartsWritten(effect.number)
            case DeleteEntries():
                await store.delete_entries(effect.journal, effect.below)
            case DeleteParts():
                await store.delete_parts(effect.journal, effect.parts)
            case AnswerDelivery() | Report():
                pass
            case _:
                raise TypeError(f"nothing performs the effect {effect!r:.200}")
        return None
