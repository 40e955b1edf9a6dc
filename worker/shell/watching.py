"""Follows the broadcast low watermarks of all senders to this worker's intervals (section 7.2)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import Final

from millwheel.model.backoff import Backoff
from millwheel.model.keys import KeyInterval
from millwheel.worker.latest_watermarks import LatestWatermarks
from millwheel.worker.messages import SenderWatermarks

__all__ = ["SenderWatch", "Watermarks"]

log = logging.getLogger("millwheel.worker")

Watermarks = Mapping[str, tuple[int, Sequence[tuple[KeyInterval | str, int]]]]
"""The broadcast value of each sender, and the new sequencers behind it."""

_BACKOFF: Final = Backoff(2.0, 2.0)


class SenderWatch:
    """One watch for all senders of the intervals here. ``tell`` receives every update."""

    def __init__(
        self,
        watch: Callable[[Iterable[str]], AsyncIterator[Watermarks]],
        tell: Callable[[SenderWatermarks], None],
    ) -> None:
        self._watch = watch
        self._tell = tell
        self._senders: frozenset[str] = frozenset()
        self._lives: dict[str, object] = {}
        self._latest = LatestWatermarks()
        self._task: asyncio.Task[None] | None = None

    def known(self) -> SenderWatermarks:
        """All broadcasts so far, for a new host. Later updates name only new sequencers, so they are not enough."""
        return self._latest.update()

    def follow(self, senders: frozenset[str], lives: Mapping[str, object] = MappingProxyType({})) -> None:
        """Watch exactly these senders from now on.

        ``lives``: for a sender whose name may be used again, a value that identifies its life. Broadcasts of one life
        do not apply to the next one (G7). This holds even if this process has not seen the time between them.
        """
        before, self._lives = self._lives, {sender: lives[sender] for sender in senders & lives.keys()}
        same = {sender for sender in senders if before.get(sender) == self._lives.get(sender)}
        if senders == self._senders and same == senders:
            return
        self._senders = senders
        self._latest.keep(same)
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._run(senders)) if senders else None

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, senders: frozenset[str]) -> None:
        while True:
            try:
                await self._follow(senders)
            except Exception:
                log.exception("low watermarks cannot be followed; trying again")
            await asyncio.sleep(_BACKOFF.delay(1, random.random()))

    async def _follow(self, senders: frozenset[str]) -> None:
        async with aclosing(self._watch(sorted(senders))) as updates:  # type: ignore[type-var]
            async for update in updates:
                values = {name: watermark for name, (watermark, _) in update.items()}
                sequencers = {name: members for name, (_, members) in update.items()}
                news = SenderWatermarks(values, sequencers)
                self._latest.add(news)
                self._tell(news)
