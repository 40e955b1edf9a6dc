"""Calls that a client repeats while the first one still runs: all get the outcome of the first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["JoinedCalls"]

Outcome = TypeVar("Outcome")


@dataclass(slots=True)
class _Work(Generic[Outcome]):
    task: asyncio.Task[Outcome]
    waiting: int = 0


class JoinedCalls(Generic[Outcome]):
    """The calls in progress, by request id. The work is cancelled with the last call that waits for it."""

    def __init__(self) -> None:
        self._works: dict[str, _Work[Outcome]] = {}

    async def call(self, request_id: str, begin: Callable[[], Coroutine[Any, Any, Outcome]]) -> Outcome:
        """The outcome of the work with this id, which begins unless it is in progress. An empty id is never joined."""
        work = self._works.get(request_id) if request_id else None
        if work is None:
            work = _Work(asyncio.create_task(begin()))
            self._works[request_id or f"call {id(work)}"] = work
        work.waiting += 1
        try:
            return await asyncio.shield(work.task)
        finally:
            work.waiting -= 1
            if not work.waiting:
                # A later call with this id begins again: this work has an outcome, or is given up.
                self._works = {name: one for name, one in self._works.items() if one is not work}
                work.task.cancel()
                await asyncio.wait([work.task])
