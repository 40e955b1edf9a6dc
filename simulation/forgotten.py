"""What operators keep for a time only: once all input has ended, no key has a state or a timer of theirs (G13)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from simulation.blocks import OPERATORS, PIPELINE
from simulation.owners import serving
from simulation.plan import Plan
from simulation.twin import read_interval
from simulation.world import World

__all__ = ["check_forgotten"]

_MOMENT: Final = 10.0
"""Virtual seconds in which the last timers fire: of the watermark's end, or of 2.5 seconds by a clock that is wrong."""
_POLL: Final = 0.5
"""Virtual seconds between two looks."""


async def check_forgotten(world: World, turned: float) -> None:
    """Report each key that has something left. ``turned``: by how many seconds clocks were set back."""
    forgetful = [prefix for prefix, forgets in _steps(world.plan) if forgets]
    limit = world.loop.time() + _MOMENT + turned
    while left := [one for prefix in forgetful for one in _left(world, prefix)]:
        if world.loop.time() > limit:
            world.violated(f"operators keep what they should forget: {left} (G13)")
            return
        await asyncio.sleep(_POLL)


def _steps(plan: Plan) -> Iterator[tuple[str, bool]]:
    """The output of each step of the plan's pipelines, and whether the step forgets all keys."""
    for node in plan.nodes:
        steps = node["arguments"] if node["kind"] == PIPELINE else []
        for number, (name, _, arguments) in enumerate(steps, 1):
            output = node["outputs"][0] if number == len(steps) else f"{node['name']}-{number}"
            yield output, OPERATORS[name].forgets(arguments)


def _left(world: World, step: str) -> Iterator[tuple[str, bytes]]:
    """The journals and keys that have a state, a page or a timer. The names of a step's computations begin with its."""
    for name, core in serving(world):
        config = core.state.config
        computation = config.journal.partition(".")[0]
        if not world.processes[name].alive or not (computation == step or computation.startswith(f"{step}-")):
            continue
        twin = read_interval(world.store.inner, config.journal, config.keys, config.parents)
        rows = {key: row.blob for key, row in world.store.inner.states.get(config.incarnation, {}).items()}
        states = {key for key, state in (rows | twin.states).items() if state}
        keys = {key.partition(b"\xff")[0] for key in states} | {key for key, _, _ in twin.timers}
        yield from ((config.journal, key) for key in sorted(keys) if key in config.keys)
