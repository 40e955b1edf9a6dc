"""The first topology is cancelled while its input arrives, and submitted again under its name (sections 4.1, 7.1).

Invariant: the new incarnation has no state, ids, watermark or offset of the former one. Each record that is sent from
then on is in it once. Each record that was sent before is in it at most once. Who could break it: an owner that serves
a former incarnation, ids or injectors that outlive it, or a log that continues behind the offsets of the former one.
"""

from __future__ import annotations

import asyncio

from millwheel.client.control import ControlClient
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from simulation.blocks import assemble
from simulation.clients import ADDRESS, ClientProgress
from simulation.plan import package_of
from simulation.process import Process
from simulation.world import Main, World

__all__ = ["returner"]

_NAME = "simulated"
_KNOWN_AFTER = 2.0
"""Virtual seconds in which, without faults, all watchers of the coordinator are notified of the new incarnation."""


def returner(progress: ClientProgress) -> Main:
    """Cancel the topology at the planned time, and submit it again."""

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        if not progress.cancelled:
            await asyncio.sleep(world.plan.returns_at)
        while progress.returned is None:
            try:
                async with ControlClient(ADDRESS, deadline=3.0, patience=5.0) as client:
                    await _again(world, progress, client)
            except (RequestError, TimeoutError) as error:
                world.history.note(f"not back yet: {error}")
            await asyncio.sleep(0.5)

    return main


async def _again(world: World, progress: ClientProgress, client: ControlClient) -> None:
    if not progress.cancelled:
        if not await _is_cancelled(client):
            await client.cancel(_NAME, request_id="the first end")
        progress.cancelled = True
        world.history.note("the topology is cancelled")
        # The current subscribers and injectors belong to the former incarnation.
        for name in _clients(world):
            world.kill(name)
        await asyncio.sleep(world.file_chance.uniform(0.0, 2.0))
    # A former life of this process may have submitted it, and it may have had updates since.
    if await _is_cancelled(client):
        package = package_of(world.plan)
        await client.upload_package(package.digest, package.data)
        await client.submit(assemble(world.plan.text()).to_spec(package.reference()), request_id="the second one")
    world.history.note("the topology is back")
    for kept in (progress.sunk, progress.promised, progress.flushed):
        kept.clear()
    progress.ended.clear()
    # Subscribers start at once: workers may still have the former logs.
    progress.readable.set()
    readers = [name for name in _clients(world) if name.startswith("sub-")]
    _start_again(world, readers)
    await asyncio.sleep(_KNOWN_AFTER)
    progress.finished.clear()
    progress.returned = world.loop.time()
    progress.back.set()
    _start_again(world, [name for name in _clients(world) if name not in readers])


def _start_again(world: World, names: list[str]) -> None:
    for name in names:
        world.kill(name)  # a fault may have restarted it
        world.start(name)


async def _is_cancelled(client: ControlClient) -> bool:
    try:
        return (await client.get_topology(_NAME)).topology.state == catalog.TOPOLOGY_STATE_CANCELLED
    except RequestError as error:
        if error.code is FailureCode.NOT_FOUND:
            return True
        raise


def _clients(world: World) -> list[str]:
    """The subscribers of sinks, and the injectors."""
    readers = {f"{one.stream}-{one.process}" for one in world.plan.readers}
    return [name for name in world.processes if name in readers or name.startswith("sub-")]
