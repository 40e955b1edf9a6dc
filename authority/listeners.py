"""The watches of broadcasts, and the updates that each watch has not delivered yet (7.2).

A slow watch costs no more than a fast one. For each computation only the newest value waits, and the sequencers
accepted since the last delivery. Above a limit, the watch sends all sequencers again instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from millwheel.rpc.watermarks import BroadcastUpdate, Member

__all__ = ["Listener", "Listeners"]

_MAX_WAITING_SEQUENCERS: Final = 10_000
"""The maximum number of sequencers that wait one by one for one watch and computation."""

Current = Callable[[str], tuple[int, list[tuple[Member, int]]]]
"""A computation's broadcast value, and all its members' sequencers."""


class Listener:
    """One watch of some computations."""

    def __init__(self, computations: Iterable[str], current: Current) -> None:
        self.computations = frozenset(computations)
        self._current = current
        self._whole: set[str] = set(self.computations)
        self._values: dict[str, int] = {}
        self._sequencers: dict[str, dict[Member, int]] = {}
        self._news = asyncio.Event()
        self._news.set()
        self._failure: Callable[[], Exception] | None = None

    def publish(self, values: Mapping[str, int], sequencers: Iterable[tuple[str, Member, int]]) -> None:
        """Keep updates of the watched computations until :meth:`next` returns them."""
        for computation, member, sequencer in sequencers:
            if computation in self.computations and computation not in self._whole:
                waiting = self._sequencers.setdefault(computation, {})
                waiting[member] = sequencer
                if len(waiting) > _MAX_WAITING_SEQUENCERS:
                    del self._sequencers[computation]
                    self._whole.add(computation)
        for computation in self.computations & values.keys():
            self._values[computation] = values[computation]
        if self._values or self._sequencers or self._whole:
            self._news.set()

    def fail(self, error: Callable[[], Exception]) -> None:
        """End the watch with the exception that ``error`` creates."""
        self._failure = error
        self._news.set()

    async def next(self) -> dict[str, BroadcastUpdate]:
        """Wait for updates and return all of them since the last call. The first call returns the current values.

        Raises the exception that ended the watch.
        """
        await self._news.wait()
        if self._failure is not None:
            raise self._failure()
        self._news.clear()
        news = {}
        for computation in self._whole:
            watermark, members = self._current(computation)
            news[computation] = BroadcastUpdate(watermark, tuple(members))
        for computation in (self._values.keys() | self._sequencers.keys()) - self._whole:
            # Only if no value waits: to list all of a computation's members takes long.
            watermark = self._values[computation] if computation in self._values else self._current(computation)[0]
            members_since = tuple(self._sequencers.get(computation, {}).items())
            news[computation] = BroadcastUpdate(watermark, members_since)
        self._whole.clear()
        self._values.clear()
        self._sequencers.clear()
        return news


class Listeners:
    """All watches of a shard."""

    def __init__(self, current: Current) -> None:
        self._current = current
        self._all: dict[Listener, None] = {}
        """The watches in the order of their arrival."""

    def __len__(self) -> int:
        return len(self._all)

    def add(self, computations: Iterable[str]) -> Listener:
        """Return a new watch. Call :meth:`remove` when it ends."""
        made = Listener(computations, self._current)
        self._all[made] = None
        return made

    def remove(self, listener: Listener) -> None:
        """End a watch."""
        self._all.pop(listener, None)

    def publish(self, values: Mapping[str, int], sequencers: Iterable[tuple[str, Member, int]]) -> None:
        """Broadcast to all watches."""
        for listener in self._all:
            listener.publish(values, sequencers)

    def fail(self, error: Callable[[], Exception]) -> None:
        """End all watches, each with an exception that ``error`` creates."""
        for listener in self._all:
            listener.fail(error)
