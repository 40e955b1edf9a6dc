"""An operator who ends the topology midway: the operator drains it or cancels it."""

from __future__ import annotations

import asyncio

from millwheel.client.control import ControlClient
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from simulation.clients import ADDRESS, ClientProgress
from simulation.process import Process
from simulation.world import Main, World

__all__ = ["ender"]


def ender(progress: ClientProgress) -> Main:
    """End the topology at the planned time, with retries, and record when it has ended."""

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        await asyncio.sleep(world.plan.ends_at)
        async with ControlClient(ADDRESS, deadline=3.0, patience=2.0) as client:
            while progress.over is None:
                try:
                    if await _is_over(client, world.plan.ending):
                        world.history.note(f"the end: {world.plan.ending}")
                        progress.over = world.loop.time()
                except (RequestError, TimeoutError) as error:
                    world.history.note(f"no {world.plan.ending} yet: {error}")
                await asyncio.sleep(0.5)

    return main


async def _is_over(client: ControlClient, ending: str) -> bool:
    try:
        state = (await client.get_topology("simulated")).topology.state
    except RequestError as error:
        if error.code is FailureCode.NOT_FOUND:
            return True
        raise
    if state in (catalog.TOPOLOGY_STATE_DRAINED, catalog.TOPOLOGY_STATE_CANCELLED):
        return True
    if ending == "cancel":
        await client.cancel("simulated", request_id="the end")
    elif state == catalog.TOPOLOGY_STATE_PAUSED:
        await client.resume("simulated")
    elif state == catalog.TOPOLOGY_STATE_RUNNING:
        await client.drain("simulated")
    return False
