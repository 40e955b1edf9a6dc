"""The first topology is cancelled while its input arrives, and submitted again under its name (sections 4.1, 7.1).

Invariant: the new incarnation has no state, ids, watermark or offset of the former one. Each record that is sent from
then on is in it once. Each record that was sent before is in it at most once. Who could break it: an owner that serves
a former incarnation, ids or injectors that outlive it, or a log that continues behind the offsets of the former one.

A second topology may stay and read a stream that comes back. If so, the injectors start from their first records.
Invariant: the second topology has each record once for each life of the stream that sent it. Who could break it: ids of
a former life that count in the next one, or a copy of the former life that arrives late.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

from millwheel.client.control import ControlClient
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from simulation.blocks import assemble
from simulation.clients import ADDRESS, ClientProgress
from simulation.plan import Plan, package_of
from simulation.process import Process
from simulation.world import Main, World

__all__ = ["returner", "stayed_differences"]

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
        for sink in world.plan.sinks:
            kept.pop(sink, None)
    progress.ended.difference_update(world.plan.sinks)
    # Subscribers start at once: workers may still have the former logs.
    progress.readable.set()
    readers = [name for name in _clients(world) if name.startswith("sub-")]
    _start_again(world, readers)
    # The injectors of a stream that another topology reads may come before its owners know of the new life.
    await asyncio.sleep(world.file_chance.choice((0.0, _KNOWN_AFTER)) if world.plan.stays else _KNOWN_AFTER)
    progress.finished.clear()
    if world.plan.stays:
        progress.stayed = Counter(number for _, item in progress.sunk.get("z0", {}).values() for number in item.ids)
        for done in (progress.read, progress.sent, progress.idled):
            done.clear()
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
    """The subscribers of the topology's sinks, and its injectors."""
    readers = {f"{one.stream}-{one.process}" for one in world.plan.readers}
    subscribers = {f"sub-{sink}" for sink in world.plan.sinks}
    return [name for name in world.processes if name in readers | subscribers]


def stayed_differences(
    plan: Plan, progress: ClientProgress, joined: float | None, found: Counter[int]
) -> Iterator[str]:
    """Records that the topology that stays has too often, or lacks from the present life of the stream (G1).

    Args:
        plan: The plan of the run.
        progress: What the clients know at the end.
        joined: When the last worker was notified of that topology, in virtual seconds. None: its sink is not read to
            the end.
        found: How often each record is in its sink.
    """
    back = progress.returned
    if back is None:
        return
    for number, count in found.items():
        most = 2 if progress.first_sent[number] < back else 1
        if count > most:
            yield f"the topology that stays has record {number} {count} times, and it was sent in {most} lives (G1)"
    if joined is None or joined > back:
        return  # the injectors may not have known it
    assert plan.neighbour is not None
    read = [one for one in plan.readers if one.stream in plan.neighbour["inputs"]]
    for number in (one.number for by in read for one in by.inputs):
        if found[number] == progress.stayed[number]:
            yield f"the topology that stays lacks record {number} of the stream's present life (G1)"
