"""The open readers and writers of a process. They are a cache: what counts is in the states (G1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

__all__ = ["CALL_SECONDS", "Handles"]

CALL_SECONDS: Final = 60.0
"""The time limit of each call of a connector."""
_UNUSED_SECONDS: Final = 60.0
"""A handle that nothing uses for so long is closed. Its key has gone to another process, for example."""


class _Handle(Protocol):
    async def close(self) -> None: ...


H = TypeVar("H", bound=_Handle)


@dataclass(slots=True)
class _IdleHandle(Generic[H]):
    """A handle that waits for its next use. ``place``: where that begins."""

    handle: H
    place: Any
    timer: asyncio.TimerHandle


class Handles(Generic[H]):
    """Handles by key, between two uses.

    *Invariant: a kept handle is used only where its last use ended.* Otherwise it is closed, and another one is opened
    at the place that the state says. Who may break it: a hook whose commit did not take effect, or a key that was
    elsewhere meanwhile. Both leave another place in the state.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _IdleHandle[H]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def take(self, key: str, place: Any, open_one: Callable[[], Awaitable[H]]) -> H:
        """The handle of the key that stands at ``place``, or a new one. The caller keeps it or closes it afterwards."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.timer.cancel()
            if kept.place == place:
                return kept.handle
            await self.close(kept.handle)
        async with asyncio.timeout(CALL_SECONDS):
            return await open_one()

    def keep(self, key: str, handle: H, place: Any) -> None:
        """Keep a handle until the next use of its key."""
        if (other := self._kept.pop(key, None)) is not None:
            other.timer.cancel()
            self._close_later(other.handle)
        timer = asyncio.get_running_loop().call_later(_UNUSED_SECONDS, self._unused, key)
        self._kept[key] = _IdleHandle(handle, place, timer)

    async def close(self, handle: H) -> None:
        """Close a handle. An error changes nothing: no call uses it any more."""
        with suppress(Exception):
            async with asyncio.timeout(CALL_SECONDS):
                await handle.close()

    def _unused(self, key: str) -> None:
        self._close_later(self._kept.pop(key).handle)

    def _close_later(self, handle: H) -> None:
        task = asyncio.get_running_loop().create_task(self.close(handle))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
