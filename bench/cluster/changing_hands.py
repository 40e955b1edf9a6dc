"""For how long an interval is unavailable when it is moved, split or merged under a steady load (4.1, 7.1).

A few of its keys each receive a record every few milliseconds, and produce an answer to it. For each key, the time
without an answer is the longest gap between two answers, from before the change to a second after it. The normal gap
between two answers is part of this time.
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
"""Seconds between two records of a key."""
_SETTLE: Final = 1.0
"""Seconds after a change in which the gap is searched."""
_FILLING: Final = 500
"""The number of records per call while the interval is filled."""


@dataclass(slots=True)
class Load:
    """The steady load on some keys, and the times of each key's answers (the machine's monotonic clock)."""

    keys: list[str]
    answers: dict[str, list[float]] = field(default_factory=dict)

    async def send(self, injector: Injector) -> None:
        """Send a record to each key, repeatedly."""
        async for _ in beats(1 / _SPACING):
            at = wall_micros()
            await injector.send_many([Beat(key, at) for key in self.keys], [at] * len(self.keys))
            await injector.advance(at)

    async def receive(self, subscription: Subscription) -> None:
        """Note the time of each answer."""
        async for batch in subscription:
            now = time.monotonic()
            for beat in batch.values:
                self.answers.setdefault(beat.key, []).append(now)

    def gap(self, begin: float, end: float) -> float:
        """The longest time in milliseconds that any key had no answer. A key that never answers again is an error."""
        if len(self.answers) < len(self.keys):
            raise RuntimeError(f"only {sorted(self.answers)} of {self.keys} answer")
        return worst_gap(self.answers, begin, end) * 1e3


@dataclass(slots=True)
class Interval:
    """The interval that is moved, split and merged, under load."""

    system: System
    load: Load
    middle: bytes
    """The key at which the interval is split."""

    def _name(self, key: bytes = b"") -> wire.IntervalName:
        return wire.IntervalName(topology="held", computation="holder", key=key)

    async def move(self) -> None:
        """Move the interval to the next worker."""
        owner = await self.system.owner_of("held", "holder", b"")
        await self.system.client.move_interval(self._name(), self.system.other(owner.worker_id))

    async def split(self) -> None:
        """Split the interval in two. The upper half moves to the next worker."""
        owner = await self.system.owner_of("held", "holder", b"")
        await self.system.client.split_interval(self._name(), self.middle, self.system.other(owner.worker_id))

    async def merge(self) -> None:
        """Merge the halves, at the worker of the lower one."""
        await self.system.client.merge_intervals(self._name())

    async def away(self, change: Callable[[], object]) -> float:
        """The longest gap around ``change``, in milliseconds."""
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
    """Return the median and the longest time without answers, by kind of change.

    The interval contains ``keys`` keys with ``state`` bytes each.
    """
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
    """An interval with that much state, under a steady load until ``stack`` is closed."""
    await system.submit("bench.cluster.topologies:held")
    await system.settled("held", "holder")
    await system.log_on("answers", system.workers[0])
    injector = await stack.enter_async_context(
        Injector("beats", address=system.address, process="bench", topology=topologies.held)
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
    """Send each key its state."""
    reported_at = time.monotonic()
    for first in range(0, keys, _FILLING):
        at = wall_micros()
        names = [name_of(number) for number in range(first, min(first + _FILLING, keys))]
        await injector.send_many([Beat(name, at, state) for name in names], [at] * len(names))
        await injector.advance(at)
        if time.monotonic() - reported_at > 10:
            reported_at = time.monotonic()
            say(f"{first * state / 1e6:,.0f} of {keys * state / 1e6:,.0f} MB are on their way")
    await injector.flush()


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancel the task and wait for its end. Raises the task's error, if it had one."""
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return
