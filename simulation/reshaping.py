"""An operator who moves, splits and merges intervals, and pauses and resumes the topology, while the rest goes on."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from millwheel.client.control import ControlClient
from millwheel.core.interval_table import interval_from_proto
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import interval_pb2
from simulation.blocks import assemble
from simulation.cluster import MASTERS
from simulation.cluster import WORKERS as WORKER_NAMES
from simulation.plan import package_of
from simulation.process import Process
from simulation.world import World

__all__ = ["reshape"]

_ADDRESS: Final = ",".join(f"{name}:1" for name in MASTERS)


async def reshape(world: World, process: Process) -> None:
    """A process's main: some changes while the input comes, then none."""
    chance = Random(f"reshaping {world.plan.seed}")
    count = chance.choice((0, 2, 5, 10))
    until = world.plan.span * 1.2
    async with ControlClient(_ADDRESS, deadline=3.0, patience=2.0) as client:
        for _ in range(count):
            await asyncio.sleep(chance.uniform(0.0, 2.0 * until / count))
            what = chance.choice(("move", "move", "split", "split", "merge", "pause", "update"))
            try:
                done = await (_update(world, client) if what == "update" else _change(client, chance, what))
                world.history.note(f"{what}: {done}")
            except (RequestError, TimeoutError) as error:
                world.history.note(f"{what}: not done: {error}")
        await _resumed(world, client)


async def _update(world: World, client: ControlClient) -> str:
    """A new version, of the same code: every interval is taken over."""
    spec = assemble(world.plan.text()).to_spec(package_of(world.plan).reference())
    return f"version {(await client.update(spec)).version}"


async def _change(client: ControlClient, chance: Random, what: str) -> str:
    if what == "pause":
        record = await client.pause("simulated")
        await asyncio.sleep(chance.uniform(0.0, 3.0))
        await client.resume("simulated")
        return f"version {record.version}"
    found = await client.list_intervals()
    if not found:
        return "no intervals"
    name = interval_pb2.IntervalName(journal=chance.choice(found).interval.journal)
    worker = f"{chance.choice(WORKER_NAMES)}.0" if chance.random() < 0.7 else ""
    if what == "move":
        return str(interval_from_proto((await client.move_interval(name, worker)).keys))
    if what == "split":
        at = f"{chr(chance.randint(33, 125))}{chr(chance.randint(33, 125))}".encode()
        return " and ".join(str(interval_from_proto(one.keys)) for one in await client.split_interval(name, at, worker))
    return str(interval_from_proto((await client.merge_intervals(name, worker)).keys))


async def _resumed(world: World, client: ControlClient) -> None:
    """A pause of which no outcome was told is ended."""
    while True:
        try:
            record = (await client.get_topology("simulated")).topology
            if record.state != catalog.TOPOLOGY_STATE_PAUSED:
                return
            await client.resume("simulated")
        except (RequestError, TimeoutError) as error:
            world.history.note(f"not resumed yet: {error}")
        await asyncio.sleep(0.5)
