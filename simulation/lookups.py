"""A client that only some plans have: it looks up the states of a counting computation.

Invariant: a look-up has every record that was ACKed before it, and a later look-up has at least what an earlier one
had. An owner that was deposed and does not know it would break both.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from millwheel.client.states import StateReader
from millwheel.rpc.failures import RequestError
from simulation.clients import ADDRESS, ClientProgress
from simulation.plan import Plan
from simulation.process import Process
from simulation.world import Main, World

__all__ = ["looker"]


def looker(progress: ClientProgress) -> Main:
    """Look states up again and again, until the input has ended."""

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        plan = world.plan
        chance = Random(f"looker {plan.seed} {process.life}")
        keys = sorted({key for one in plan.readers for record in one.inputs for key in (record.a, record.b)})
        place = f"simulated/{plan.counter}"
        async with StateReader[Any](place, object, address=ADDRESS, patience=3.0) as states:
            while len(progress.finished) < len(plan.readers):
                try:
                    await _look_up(world, progress, states, keys)
                except (RequestError, TimeoutError) as error:
                    world.history.note(f"no states: {error}")
                await asyncio.sleep(chance.uniform(0.05, 1.0))

    return main


async def _look_up(world: World, progress: ClientProgress, states: StateReader[Any], keys: list[str]) -> None:
    acked, before = _acked(world.plan, progress), dict(progress.counts)
    async with asyncio.timeout(5.0):
        found = await states.get_many(keys)
    counts = {key: _count(found.get(key, 0)) for key in keys}
    world.history.note(f"states of {states.computation}: {counts}")
    for key, count in counts.items():
        if count < before.get(key, 0):
            world.violated(f"{states.computation}, key {key}: {count} after {before[key]} had been looked up (G3)")
        if count < acked.get(key, 0):
            world.violated(f"{states.computation}, key {key}: {count}, and {acked[key]} records were ACKed (G1)")
    progress.counts = counts


def _acked(plan: Plan, progress: ClientProgress) -> dict[str, int]:
    """How many records of each key are known to be ACKed, if the computation reads sources alone and drops nothing."""
    (node,) = (node for node in plan.nodes if node["name"] == plan.counter)
    fed = {one["name"] for one in plan.sources}
    if not set(node["inputs"]) <= fed or node["late"] or {"letters", "stops"} & node.keys():
        return {}
    counts: dict[str, int] = {}
    for reader in plan.readers:
        field = node["inputs"].get(reader.stream)
        if field is not None and not (reader.batched or reader.spark or reader.files):
            for record in reader.inputs[: progress.read.get((reader.stream, reader.process), 0)]:
                key = getattr(record, field)
                counts[key] = counts.get(key, 0) + 1
    return counts


def _count(state: Any) -> int:
    """The number in a state of any version of the code (:mod:`simulation.blocks.plain`)."""
    if isinstance(state, dict):
        return len(state["counts"]) if "counts" in state else int(state["count"])
    return int(state)
