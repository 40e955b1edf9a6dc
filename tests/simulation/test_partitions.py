"""A partition loses a request to the store, or the store executes it afterwards. No answer comes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from millwheel.store.contract import StoreUnavailableError
from simulation.forking import apart
from simulation.loop import SimulatedLoop
from simulation.process import Process
from simulation.seed_plan import plan_for
from simulation.world import World

_ASKED = 40


def carried_out(directory: Path) -> tuple[int, int, int]:
    """How often such a request was answered, executed before the partition's end, and executed after it."""
    loop = SimulatedLoop(Random(1))
    asyncio.set_event_loop(loop)
    world = World(plan_for(1), loop, directory)
    times: list[float] = []

    async def main(world: World, process: Process) -> None:
        await asyncio.gather(*(ask(world) for _ in range(_ASKED)))

    async def ask(world: World) -> None:
        try:
            await world.store.remote.ask(lambda: times.append(loop.time()))
        except StoreUnavailableError:
            return
        times.append(-1.0)

    world.network.cut("w0", "store")
    world.start("w0", main)
    world.later(8.0, world.kill, "w0")
    world.later(10.0, world.network.heal)
    loop.run_until_complete(asyncio.sleep(20.0))
    return times.count(-1.0), sum(0.0 <= at < 10.0 for at in times), sum(at >= 10.0 for at in times)


@pytest.mark.guarantee("G3", section="fig. 12")
def test_a_partitions_delayed_messages_outlive_their_sender(tmp_path: Path) -> None:
    """Some delayed messages outlive their sender, and the others are lost."""
    (found,) = apart([("a partition", lambda: carried_out(tmp_path))])
    reported, before, after = found
    assert (reported, before) == (0, 0)
    assert _ASKED // 4 < after < _ASKED * 3 // 4
