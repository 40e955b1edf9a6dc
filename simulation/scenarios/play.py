"""Plays a scenario in a forked process, and returns the text that its file must have, and the problems."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from simulation.cluster import start_cluster
from simulation.forking import apart
from simulation.history import EXPECTED
from simulation.loop import SimulatedLoop
from simulation.plan import Plan
from simulation.run import simulated
from simulation.scenarios.page import Page
from simulation.scenarios.scenario import Scenario
from simulation.scenarios.stage import Even, Stage
from simulation.world import World

__all__ = ["Played", "play_all"]


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a scenario. ``problems``: guarantees that did not hold, or a script that did not reach its end."""

    name: str
    text: str
    problems: list[str]
    history: str


def play_all(scenarios: Iterable[Scenario], directory: Path) -> Iterator[Played]:
    """Play scenarios one after the other. Each runs in a fork, so they share no state."""
    return apart((f"the scenario {scenario.name}", partial(_play, scenario, directory)) for scenario in scenarios)


def _play(scenario: Scenario, directory: Path) -> Played:
    gc.disable()
    loop = SimulatedLoop(Even(0))
    plan = Plan(0, nodes=[], span=10.0)
    for where, bounds in scenario.tuning.items():
        plan.tuning[where].update(bounds)
    world = World(plan, loop, directory)
    for remote in (world.store.remote, world.coordinator.remote):
        remote.chance = Even(0)
    world.network.chance = Even(0)
    stage = Stage(world, scenario.nodes, scenario.shows)
    with simulated(world, 0):
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(lambda _, context: _unhandled(world, context))
        try:
            loop.run_until_complete(loop.create_task(_perform(scenario, stage, world)))
        except Exception as error:
            world.violated(f"the script ended by {type(error).__name__}: {error}")
    problems = [*world.violations, *world.history.faults]
    page = Page(scenario.title, scenario.text, scenario.guarantees, scenario.paper, scenario.topology)
    return Played(scenario.name, page.write(stage.lines), problems, world.history.text())


async def _perform(scenario: Scenario, stage: Stage, world: World) -> None:
    start_cluster(world)
    await stage.prepare(scenario.places, scenario.cuts)
    await scenario.script(stage)
    stage.close()


def _unhandled(world: World, context: dict[str, object]) -> None:
    error = context.get("exception")
    if not isinstance(error, EXPECTED):
        world.violated(f"unhandled {type(error).__name__}: {error} ({context.get('message')})")
