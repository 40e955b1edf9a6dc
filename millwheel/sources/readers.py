"""The open readers of a process. They are a cache: what counts is the position in the state (G1)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from millwheel.sources.base import Source, SplitReader

__all__ = ["Readers"]

_UNUSED_SECONDS: Final = 60.0
"""A reader that nothing uses for so long is closed. Its split has gone to another process, for example."""
_CLOSE_SECONDS: Final = 10.0
"""The time limit of closing a reader."""


@dataclass(slots=True)
class _Kept:
    """A reader that waits for its next read. ``position``: where that begins."""

    reader: SplitReader[Any, Any]
    position: Any
    timer: asyncio.TimerHandle


class Readers:
    """Readers by split, between two reads.

    *Invariant: a kept reader is used only for the position at which its last read ended.* Otherwise it is closed, and
    another one is opened at the position of the state. Who may break it: a hook whose commit did not take effect, or a
    split that was read elsewhere meanwhile. Both leave another position in the state.
    """

    def __init__(self, source: Source[Any, Any]) -> None:
        self._source = source
        self._kept: dict[str, _Kept] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def take(self, split: str, position: Any) -> SplitReader[Any, Any]:
        """A reader of the split that stands at ``position``. It belongs to the caller, who keeps or closes it."""
        kept = self._kept.pop(split, None)
        if kept is not None:
            kept.timer.cancel()
            if kept.position == position:
                return kept.reader
            await self.close(kept.reader)
        return await self._source.open(split, position)

    async def keep(self, split: str, reader: SplitReader[Any, Any], position: Any) -> None:
        """Keep a reader until the next read of its split."""
        if (other := self._kept.pop(split, None)) is not None:
            other.timer.cancel()
            await self.close(other.reader)
        timer = asyncio.get_running_loop().call_later(_UNUSED_SECONDS, self._unused, split)
        self._kept[split] = _Kept(reader, position, timer)

    async def close(self, reader: SplitReader[Any, Any]) -> None:
        """Close a reader. What it raises is of no use to anyone: nothing reads with it any more."""
        with suppress(Exception):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await reader.close()

    def _unused(self, split: str) -> None:
        task = asyncio.get_running_loop().create_task(self.close(self._kept.pop(split).reader))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
