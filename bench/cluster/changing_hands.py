"""For how long an interval is away when it is moved, split or merged under a steady load (4.1, 7.1).

Each of a few of its keys is sent a record every few milliseconds, and answers it. The longest gap between two answers
of one key, from before the change to a second after it, is how long that key was away: what lies between two
answers anyway is part of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import cycle
from statistics import median
from typing import Final

from bench.cluster import topologies
from bench.cluster.measures import worst_gap
from bench.cluster.pacing import beats, wall_micros
from bench.cluster.system import System
from bench.cluster.topologies import Beat, name_of
from bench.report import Figure
from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription
from millwheel.rpc.v1 import interval_pb2 as wire

__all__ = ["Interval", "Load", "held_interval", "measure"]

_SPACING: Final = 0.008
"""Seconds from one record of a key to its next."""
_SETTLE: Final = 1.0
"""Seconds after a change in which the gap is looked for."""
_FILLING: Final = 500
"""Records sent at once to fill the interval."""


@dataclass(slots=True)
class Load:
    """The steady load on some keys, and when each of them answered (the machine's monotonic clock)."""

    keys: list[str]
    answers: dict[str, list[float]] = field(default_factory=dict)

    async def send(self, injector: Injector) -> None:
        """A record to each key, again and again."""
        async for _ in beats(1 / _SPACING):
            at = wall_micros()
            await injector.send_many([Beat(key, at) for key in self.keys], [at] * len(self.keys))
            await injector.advance(at)

    async def receive(self, subscription: Subscription) -> None:
        """Take down when answers come."""
        async for batch in subscription:
            now = time.monotonic()
            for beat in batch.values:
                self.answers.setdefault(beat.key, []).append(now)

    def gap(self, begin: float, end: float) -> float:
        """The longest that any key was away, in milliseconds; those that never came back are an error."""
        if len(self.answers) < len(self.keys):
            raise RuntimeError(f"only {sorted(self.answers)} of {self.keys} answer")
        return worst_gap(self.answers, begin, end) * 1e3


@dataclass(slots=True)
class Interval:
    """The interval that changes hands, under load."""

    system: System
    load: Load
    middle: bytes
    """The key at which it is split."""

    def _name(self, key: bytes = b"") -> wire.IntervalName:
        return wire.IntervalName(topology="held", computation="holder", key=key)

    async def move(self) -> None:
        """To the next worker."""
        owner = await self.system.owner_of("held", "holder", b"")
        await self.system.client.move_interval(self._name(), self.system.other(owner.worker_id))

    async def split(self) -> None:
        """In two, of which the upper half goes to the next worker."""
        owner = await self.system.owner_of("held", "holder", b"")
        await self.system.client.split_interval(self._name(), self.middle, self.system.other(owner.worker_id))

    async def merge(self) -> None:
        """The halves, where the lower one is."""
        await self.system.client.merge_intervals(self._name())

    async def away(self, change: Callable[[], object]) -> float:
        """How long the longest gap around ``change`` was, in milliseconds."""
        await self.system.settled("held", "holder")
        began = time.monotonic()
        result = change()
        if asyncio.iscoroutine(result):
            await result
        end = time.monotonic() + _SETTLE
        await asyncio.sleep(_SETTLE)
        async with asyncio.timeout(30):
            while not all(seen[-1] >= end for seen in self.load.answers.values()):  # noqa: ASYNC110 answers come by themselves
                await asyncio.sleep(0.02)
        return self.load.gap(began, end)


async def measure(system: System, say: Callable[[str], None], repetitions: int, keys: int, state: int) -> list[Figure]:
    """The median and the longest absence by kind of change. ``keys`` with ``state`` bytes each are in the interval."""
    async with AsyncExitStack() as stack:
        interval = await held_interval(system, say, stack, keys, state)
        still = [await interval.away(lambda: None) for _ in range(5)]
        changes = {"move": interval.move, "split": interval.split, "merge": interval.merge}
        gaps: dict[str, list[float]] = {name: [] for name in changes}
        for number, name in zip(range(repetitions * len(changes)), cycle(changes), strict=False):
            gaps[name].append(await interval.away(changes[name]))
            if number % 15 == 14:
                say(", ".join(f"{what} {median(found):.0f} ms" for what, found in gaps.items()))
    await system.cancel("held")
    figures = [Figure("interval_steady.longest_gap_ms", median(still), "ms", tuple(still))]
    for name, found in gaps.items():
        figures.append(Figure(f"interval_{name}.unavailable_p50_ms", median(found), "ms", tuple(found)))
        figures.append(Figure(f"interval_{name}.unavailable_max_ms", max(found), "ms", ()))
    return figures


async def held_interval(
    system: System, say: Callable[[str], None], stack: AsyncExitStack, keys: int, state: int
) -> Interval:
    """An interval with that much state, under a steady load for as long as ``stack`` is not closed."""
    await system.submit("bench.cluster.topologies:held")
    await system.settled("held", "holder")
    await system.log_on("answers", system.workers[0])
    injector = await stack.enter_async_context(
        Injector(system.address, "beats", process="bench", topology=topologies.held)
    )
    await _fill(injector, say, keys, state)
    subscription = await stack.enter_async_context(
        Subscription("answers", cursor="bench", record_type=Beat, address=system.address, auto_ack=True)
    )
    load = Load([name_of(keys * part // 8) for part in (1, 3, 5, 7)])
    for task in (asyncio.create_task(load.send(injector)), asyncio.create_task(load.receive(subscription))):
        stack.push_async_callback(_ended, task)
    await asyncio.sleep(_SETTLE * 2)
    return Interval(system, load, name_of(keys // 2).encode())


async def _fill(injector: Injector, say: Callable[[str], None], keys: int, state: int) -> None:
    """Give every key its state."""
    told = time.monotonic()
    for first in range(0, keys, _FILLING):
        at = wall_micros()
        names = [name_of(number) for number in range(first, min(first + _FILLING, keys))]
        await injector.send_many([Beat(name, at, state) for name in names], [at] * len(names))
        await injector.advance(at)
        if time.monotonic() - told > 10:
            told = time.monotonic()
            say(f"{first * state / 1e6:,.0f} of {keys * state / 1e6:,.0f} MB are on their way")
    await injector.flush()


async def _ended(task: asyncio.Task[None]) -> None:
    """Stop it; whatever went wrong in it goes wrong here."""
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return
