"""A memory store behind a bad network. Calls fail with an unknown outcome, or wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from millwheel.store.contract import Append, JournalHead, PartId, SequencerRefusedError, StoreUnavailableError
from millwheel.store.memory import MemoryStore

Result = TypeVar("Result")


class FaultyStore(MemoryStore):
    """Its next calls fail as scripts say: "lost" before they take effect, "unsure" after that, "deposed"; or "ok".

    ``gate`` holds appends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.script: list[str] = []
        """The scripted outcomes of appends."""
        self.fences: list[str] = []
        self.parts: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.appends: list[Append] = []
        self.in_flight = self.most_in_flight = 0

    async def fence(self, journal: str, sequencer: int) -> JournalHead:
        return await _play(self.fences, super().fence(journal, sequencer))

    async def write_part(self, journal: str, part: PartId, blob: bytes) -> None:
        await _play(self.parts, super().write_part(journal, part, blob))

    async def append(self, journal: str, append: Append) -> None:
        self.appends.append(append)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.gate.wait()
            if self.script[:1] == ["deposed"]:
                raise SequencerRefusedError(journal, append.sequencer + 1, append.commit)
            await _play(self.script, super().append(journal, append))
        finally:
            self.in_flight -= 1


class QueueingStore(FaultyStore):
    """The same, with appends that need no coroutine of the caller, as the embedded store has them."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: set[asyncio.Task[None]] = set()

    def append_soon(
        self,
        journal: str,
        append: Append,
        done: Callable[[BaseException | None], None],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        task = asyncio.get_running_loop().create_task(self.append(journal, append))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda task: done(task.exception()))


async def _play(script: list[str], call: Coroutine[Any, Any, Result]) -> Result:
    step = script.pop(0) if script else "ok"
    if step == "lost":
        call.close()
        raise StoreUnavailableError("the request was lost")
    result = await call
    if step == "unsure":
        raise StoreUnavailableError("the answer was lost")
    return result
