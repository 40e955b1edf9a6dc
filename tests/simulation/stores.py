"""A simulated store alone: one process uses it, and the test says what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

from simulation.clocks import replaced
from simulation.forking import apart
from simulation.loop import SimulatedLoop
from simulation.plan import plan_for
from simulation.process import Process
from simulation.world import World

__all__ = ["Play", "played"]

Play = Callable[[World], Awaitable[Any]]


def played(directory: Path, store: str, ways: dict[str, Any], play: Play) -> Any:
    """What ``play`` returns. It runs as process w0 of a world whose store has these ways."""

    def run() -> Any:
        loop = SimulatedLoop(Random(1))
        asyncio.set_event_loop(loop)
        plan = plan_for(1)
        plan.store, plan.store_ways = store, ways
        world = World(plan, loop, directory)
        found: list[Any] = []

        async def main(world: World, process: Process) -> None:
            found.append(await play(world))

        with replaced(loop, 1), world.store.patched():
            world.start("w0", main)
            while not found and not world.violations:
                loop.run_until_complete(asyncio.sleep(0.5))
        return world.violations or found[0]

    (found,) = apart([("a play on a store", run)])
    return found
