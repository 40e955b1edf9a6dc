"""A second topology that reads a stream of the first one: it is submitted, cancelled, and submitted again.

Or it is submitted once, and stays while the first one is cancelled and comes back: see :mod:`simulation.returning`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

from millwheel.client.control import ControlClient
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from simulation.blocks import assemble
from simulation.clients import ADDRESS, ClientProgress, subscriber
from simulation.plan import neighbour_package
from simulation.process import Process
from simulation.world import Main, World

__all__ = ["NEIGHBOUR", "neighbour"]

NEIGHBOUR = "neighbour"
"""The second topology's name, in each of its incarnations."""


def neighbour(progress: ClientProgress) -> Main:
    """Submit and cancel the second topology as often as planned. The last incarnation stays, and its sinks are read."""

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        plan = world.plan
        assert plan.neighbour is not None
        chance = Random(f"neighbour {plan.seed} {process.life}")
        pause = plan.returns_at / 4 if plan.stays else plan.span / plan.neighbour_lives / 2
        # Each incarnation is a submission and a cancellation; the last one is not cancelled. A finished step is not
        # repeated.
        while progress.neighbour_steps < 2 * plan.neighbour_lives - 1:
            life, ends = divmod(progress.neighbour_steps, 2)
            await asyncio.sleep(chance.uniform(0.0, pause))
            what = "cancel" if ends else "submit"
            await _repeated(world, f"{what} {NEIGHBOUR}", partial(_cancel if ends else _submit, world, progress, life))
            progress.neighbour_steps += 1
        for sink in plan.neighbour["outputs"]:
            if f"sub-{sink}" not in world.processes:
                world.start(f"sub-{sink}", subscriber(progress, sink))

    return main


async def _repeated(world: World, what: str, do: Callable[[ControlClient], Awaitable[None]]) -> None:
    """Repeat an action until it is known to have succeeded."""
    while True:
        try:
            async with ControlClient(ADDRESS, deadline=3.0, patience=5.0) as client:
                await do(client)
            world.history.note(what)
            return
        except (RequestError, TimeoutError) as error:
            world.history.note(f"{what}: not done yet: {error}")
            await asyncio.sleep(0.5)


async def _submit(world: World, progress: ClientProgress, life: int, client: ControlClient) -> None:
    package = neighbour_package(world.plan)
    await client.upload_package(package.digest, package.data)
    spec = assemble(world.plan.neighbour_text()).to_spec(package.reference())
    record = await client.submit(spec, request_id=f"life {life}")
    progress.neighbour_incarnation = dict(record.incarnations)


async def _cancel(world: World, progress: ClientProgress, life: int, client: ControlClient) -> None:
    record = (await client.get_topology(NEIGHBOUR)).topology
    if record.state != catalog.TOPOLOGY_STATE_CANCELLED:
        await client.cancel(NEIGHBOUR, request_id=f"end of life {life}")
