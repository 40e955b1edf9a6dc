"""Random changes of intervals, as an operator may request them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from millwheel.client.control import ControlClient
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import interval_pb2 as wire

_FEW, _MANY = 2, 6
"""Intervals of a computation."""


async def reshape(
    client: ControlClient, topology: str, cuts: Mapping[str, Sequence[str]], workers: Sequence[str], chance: Random
) -> str:
    """Move, split or merge one interval. Returns the change, or that it was refused because it came too early.

    ``cuts``: the computations, each with the keys at which it may be split. ``workers`` may get an interval. If there
    are none, no interval moves.
    """
    computation = chance.choice(sorted(cuts))
    shown = await client.list_intervals(topology, computation)
    found = sorted((one.interval for one in shown), key=lambda one: one.keys.start)
    what = chance.choice([*(["move"] if workers else []), "merge" if len(found) >= _MANY else "split"])
    if len(found) > _FEW and chance.random() < 0.3:
        what = "merge"
    worker = chance.choice(workers) if workers else ""
    one = chance.choice(found[:-1] if what == "merge" and len(found) > 1 else found)
    name = wire.IntervalName(topology=topology, computation=computation, journal=one.journal)
    try:
        if what == "move":
            await client.move_interval(name, worker)
        elif what == "merge":
            await client.merge_intervals(name, worker)
        else:
            at = chance.choice(cuts[computation]).encode()
            name = wire.IntervalName(topology=topology, computation=computation, key=at)
            await client.split_interval(name, at, worker)
    except RequestError as error:
        return f"{what} refused ({error.code.name.lower()})"
    return what
