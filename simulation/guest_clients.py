"""Clients that only some plans have: guests, a prober and a retirer.

Guests read a sink beside its own subscriber. The prober requests percentiles. The retirer is an operator that retires
injector processes and queries.
"""

from __future__ import annotations

import asyncio
from random import Random

from millwheel.client.authorities import MasterAddresses
from millwheel.client.control import ControlClient
from millwheel.client.percentiles import read_percentile
from millwheel.client.shards import ShardedWatermarks
from millwheel.client.subscription import From, Subscription
from millwheel.client.subscription.cursors import delete_cursor, list_cursors
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.failures import FailureCode, RequestError
from simulation.blocks import PIPELINE, Item
from simulation.clients import ADDRESS, ClientProgress, query_of, settled
from simulation.plan import SourceReader
from simulation.process import Process
from simulation.world import Main, World

__all__ = ["guest", "prober", "retirer"]

_CURSOR = "guest"


def guest(progress: ClientProgress, stream: str) -> Main:
    """Read a sink for some seconds at a time, with or without a cursor, and sometimes delete the cursor.

    The guest must read what the sink's subscriber reads at the same offsets. A guest with a cursor misses nothing.
    Sometimes the cursor is created again while its deletion and other appends are in flight.
    """

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        chance = Random(f"guest {world.plan.seed} {process.life}")
        again = Random(f"guest again {world.plan.seed} {process.life}")
        while not settled(world, progress, stream):
            cursor = _CURSOR if chance.random() < 0.7 else ""
            try:
                if stream not in progress.promised:
                    raise TimeoutError("what a guest alone has read would be gone")
                await asyncio.wait_for(_look_in(world, progress, stream, cursor), chance.uniform(0.5, 4.0))
            except (RequestError, TimeoutError) as error:
                world.history.note(f"has looked: {error}")
            if again.random() < 0.6:
                await _created_again(world, progress, stream)
            if chance.random() < 0.3:
                await _forgotten(world, stream)
            await asyncio.sleep(chance.uniform(0.0, 2.0))
        await _gone(world, stream)

    return main


async def _look_in(world: World, progress: ClientProgress, stream: str, cursor: str) -> None:
    guests = progress.guests.setdefault(stream, {})
    subscription = Subscription(
        stream, cursor=cursor, start=From.OLDEST, record_type=Item, address=ADDRESS, patience=20.0
    )
    async with subscription:
        _check_life(world, subscription)
        following = None
        async for batch in subscription:
            if cursor and following is not None and batch.first_offset != following:
                world.violated(f"stream {stream}: offset {batch.first_offset} comes after {following - 1} (G1)")
            following = batch.next_offset
            for offset, timestamp, item in batch:
                if guests.setdefault(offset, (timestamp, item)) != (timestamp, item):
                    world.violated(f"stream {stream} has two records at offset {offset} for its guest")
            await subscription.ack(batch.next_offset)


def _check_life(world: World, subscription: Subscription) -> None:
    """A subscription with a cursor is answered after the cursor is durable.

    From then on its incarnation has a number.
    """
    if subscription.cursor and not subscription._life:  # noqa: SLF001  # no user needs the number
        world.violated(f"stream {subscription.stream}: a cursor answers before its creation is in the journal (G1)")


async def _created_again(world: World, progress: ClientProgress, stream: str) -> None:
    """Delete the cursor, and meanwhile subscribe under its name several times in succession."""
    if stream not in progress.promised:
        return
    forgetting: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(2.0):
            for _ in range(6):
                async with Subscription(stream, cursor=_CURSOR, start=From.OLDEST, address=ADDRESS) as subscription:
                    _check_life(world, subscription)
                    forgetting = forgetting or asyncio.create_task(_forgotten(world, stream))
    except (RequestError, TimeoutError) as error:
        world.history.note(f"has looked again: {error}")
    finally:
        if forgetting is not None:
            await forgetting


async def _forgotten(world: World, stream: str) -> None:
    """Delete the cursor, if it exists. A timeout leaves the outcome unknown."""
    try:
        async with ControlClient(ADDRESS, deadline=3.0, patience=5.0) as client:
            known = {one.name: one.acked for one in await list_cursors(stream, client)}
            world.history.note(f"cursors of {stream}: {known}")
            await delete_cursor(stream, _CURSOR, client)
    except (RequestError, TimeoutError) as error:
        world.history.note(f"the cursor is not forgotten: {error}")


async def _gone(world: World, stream: str) -> None:
    """Delete the cursor with retries, because a cursor that stays would keep records for ever."""
    while True:
        try:
            async with ControlClient(ADDRESS, deadline=3.0, patience=5.0) as client:
                await delete_cursor(stream, _CURSOR, client)
            return
        except (RequestError, TimeoutError) as error:
            if isinstance(error, RequestError) and error.code is FailureCode.NOT_FOUND:
                return
            world.history.note(f"the cursor is not forgotten: {error}")
        await asyncio.sleep(0.5)


def prober(progress: ClientProgress) -> Main:
    """Request the 90th percentile of the last computation's progress: it never decreases."""

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        chance = Random(f"prober {world.plan.seed} {process.life}")
        while progress.over is None and len(progress.finished) < len(world.plan.readers):
            try:
                await _probe(world, progress)
            except (RequestError, TimeoutError) as error:
                world.history.note(f"no percentile: {error}")
            await asyncio.sleep(chance.uniform(0.2, 2.0))

    return main


async def _probe(world: World, progress: ClientProgress) -> None:
    name = [node["name"] for node in world.plan.nodes if node["kind"] != PIPELINE][-1]
    async with ControlClient(ADDRESS, deadline=3.0, patience=2.0) as client:
        records = await client.list_topologies()
        address = client.address
    incarnation = next((one.incarnations[name] for one in records if one.spec.name == "simulated"), "")
    if not incarnation:
        return
    async with ShardedWatermarks(await MasterAddresses.ask(address), on_refused=lambda report: None) as authority:
        found = await read_percentile(authority, records, incarnation, 90.0)
    world.history.note(f"nine tenths of {name} are at {found.value}, {found.silent} silent")
    before = progress.percentile.get(incarnation, int(MIN_TIMESTAMP))
    if found.value < before and world.plan.ending != "cancel" and not world.plan.returns_at:
        world.violated(f"the percentile of {name} goes from {before} to {found.value} (G7)")
    progress.percentile[incarnation] = found.value


def retirer(progress: ClientProgress) -> Main:
    """Retire processes and their queries soon after they finish. The request is refused for unfinished processes."""

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        chance = Random(f"retirer {world.plan.seed} {process.life}")
        waiting = list(world.plan.readers)
        while waiting and progress.over is None:
            which = chance.choice(waiting)
            try:
                if await _retired(world, progress, which):
                    waiting.remove(which)
            except (RequestError, TimeoutError) as error:
                world.history.note(f"{which.stream}/{which.process} is not retired: {error}")
            await asyncio.sleep(chance.uniform(0.0, 1.0))

    return main


def _has_all(progress: ClientProgress, which: SourceReader) -> bool:
    """Whether a process may have finished: all of its records were ACKed before it did.

    A file injector finishes by itself, and its run continues for a while. Each of its records was sent before that.
    :mod:`simulation.evidence` compares the end of every process with the journals.
    """
    if which.files:
        return all(one.number in progress.first_sent for one in which.inputs)
    return progress.read.get((which.stream, which.process), 0) == len(which.inputs)


async def _retired(world: World, progress: ClientProgress, which: SourceReader) -> bool:
    """Retire a process and its query, if it has one; True if both are retired."""
    name = which.stream, which.process
    async with ControlClient(ADDRESS, deadline=3.0, patience=2.0) as client:
        await client.retire_injector(*name)
        if not _has_all(progress, which):
            world.violated(f"{which.stream}/{which.process} is retired, and it has not finished (G7)")
        world.history.note(f"{which.stream}/{which.process} is retired")
        if which.batched or which.spark:
            query = f"{query_of(which)}/{which.stream}" if which.spark else query_of(which)
            await client.retire_query(query)
            world.history.note(f"query {query} is retired")
    return True
