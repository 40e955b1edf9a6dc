"""Moves, splits and merges, one after the other, of all that the load runs on."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Final

from millwheel.client.control import ControlClient
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import interval_pb2 as wire
from tests.faults.load import names

__all__ = ["reshape"]

_FEW, _MANY = 2, 6
"""Intervals of a computation."""
_COMPUTATIONS: Final = ("numberer", "adder", "passer")


async def reshape(client: ControlClient, workers: list[str], seed: int, every: float, reached: Counter[str]) -> None:
    """A change every so many seconds, for ever; ``reached`` counts them."""
    chance = random.Random(seed)
    while True:
        await asyncio.sleep(chance.uniform(0.5, 1.5) * every)
        try:
            reached[await _change(client, workers, chance)] += 1
        except RequestError as error:
            # It is under way already, or has just changed: the master says so.
            reached[f"refused ({error.code.name.lower()})"] += 1


async def _change(client: ControlClient, workers: list[str], chance: random.Random) -> str:
    computation = chance.choice(_COMPUTATIONS)
    found = [one.interval for one in await client.list_intervals("faults", computation)]
    what = chance.choice(["move", "merge" if len(found) >= _MANY else "split"])
    if len(found) > _FEW and chance.random() < 0.3:
        what = "merge"
    worker = chance.choice(workers)
    if what == "split":
        at = chance.choice(names()).encode()
        name = wire.IntervalName(topology="faults", computation=computation, key=at)
        await client.split_interval(name, at, worker)
        return what
    lowest = sorted(found, key=lambda one: one.keys.start)
    one = chance.choice(lowest[:-1] if what == "merge" and len(lowest) > 1 else lowest)
    name = wire.IntervalName(topology="faults", computation=computation, journal=one.journal)
    if what == "move":
        await client.move_interval(name, worker)
    else:
        await client.merge_intervals(name, worker)
    return what
