"""The open readers and writers of a process. They are a cache: what counts is in the states (G1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

__all__ = ["CALL_SECONDS", "HandleInUse", "Handles"]

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


class HandleInUse(Generic[H]):
    """A handle during one use."""

    def __init__(self, handle: H) -> None:
        self.handle = handle
        self.ended_at: tuple[Any] | None = None
        """The place where the use ended. None: the handle is of no more use."""

    def ends_at(self, place: Any) -> None:
        """The use has ended at ``place``, where the next one may begin."""
        self.ended_at = (place,)


class Handles(Generic[H]):
    """Handles by key, between two uses.

    *Invariant: a kept handle is used only where its last use ended.* Otherwise it is closed, and another one is opened
    at the place that the state says. Who may break it: a hook whose commit did not take effect, or a key that was
    elsewhere meanwhile. Both leave another place in the state.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _IdleHandle[H]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def use(self, key: str, place: Any, open_one: Callable[[], Awaitable[H]]) -> AsyncIterator[HandleInUse[H]]:
        """Use the handle of the key that stands at ``place``, or a new one.

        Afterwards it is kept where the block has said that the use ended. It is closed if the block has said nothing,
        or failed.
        """
        used = HandleInUse(await self._take(key, place, open_one))
        try:
            yield used
        except BaseException:
            await self._close(used.handle)
            raise
        if used.ended_at is None:
            await self._close(used.handle)
        else:
            self._keep(key, used.handle, used.ended_at[0])

    async def close(self) -> None:
        """Close the handles that wait for their next use."""
        while self._kept:
            _, kept = self._kept.popitem()
            kept.timer.cancel()
            await self._close(kept.handle)
        if self._closing:
            await asyncio.wait(self._closing)

    async def _take(self, key: str, place: Any, open_one: Callable[[], Awaitable[H]]) -> H:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.timer.cancel()
            if kept.place == place:
                return kept.handle
            await self._close(kept.handle)
        async with asyncio.timeout(CALL_SECONDS):
            return await open_one()

    def _keep(self, key: str, handle: H, place: Any) -> None:
        if (other := self._kept.pop(key, None)) is not None:
            other.timer.cancel()
            self._close_later(other.handle)
        timer = asyncio.get_running_loop().call_later(_UNUSED_SECONDS, self._unused, key)
        self._kept[key] = _IdleHandle(handle, place, timer)

    async def _close(self, handle: H) -> None:
        """Close a handle. An error changes nothing: no call uses it any more."""
        with suppress(Exception):
            async with asyncio.timeout(CALL_SECONDS):
                await handle.close()

    def _unused(self, key: str) -> None:
        self._close_later(self._kept.pop(key).handle)

    def _close_later(self, handle: H) -> None:
        task = asyncio.get_running_loop().create_task(self._close(handle))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
