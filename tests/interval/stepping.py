"""A store whose callers can be stopped between any two calls, for all that may happen meanwhile."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any

__all__ = ["Stepping", "certain"]


@types.coroutine
def _pause() -> Generator[None, None, None]:
    yield


class Stepping:
    """Passes calls on to ``store``, each after a pause of its caller."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._store, name)

        async def paused(*arguments: Any) -> Any:
            await _pause()
            return await call(*arguments)

        return paused


async def certain(call: Callable[[], Awaitable[Any]]) -> Any:
    """The outcome of a call of the memory store is always known."""
    return await call()
