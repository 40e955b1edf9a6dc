"""Operators that change a running topology: they move, split and merge intervals, pause and resume, and update it.

One resumes computations that a failure policy has stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from millwheel.client.control import ControlClient
from millwheel.model.interval_map import interval_from_proto
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import interval_pb2
from millwheel.worker.interval import IntervalCore
from simulation.blocks import assemble
from simulation.clients import ADDRESS, ClientProgress, settled, subscriber
from simulation.cluster import WORKERS as WORKER_NAMES
from simulation.forms import next_form
from simulation.plan import package_of
from simulation.process import Process
from simulation.world import Main, World

__all__ = ["former", "merger", "reshaper", "splitter", "tender", "updater"]


def reshaper(progress: ClientProgress) -> Main:
    """Make some changes while the input arrives, then none."""

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        plan = world.plan
        count, chance = plan.reshaping()

        def change(client: ControlClient) -> tuple[str, Awaitable[str]]:
            what = chance.choice(("move", "move", "split", "split", "merge", "pause", "update"))
            if what == "update":
                return what, _update(world, progress, client)
            return what, _change(progress, client, chance, what)

        async with ControlClient(ADDRESS, deadline=3.0, patience=2.0) as client:
            await _changes(world, client, chance, count, plan.span * 1.2, change)
            await _resumed(world, progress, client)

    return main


def updater(progress: ClientProgress) -> Main:
    """Make the plan's new versions, one after the other."""

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        chance, plan = Random(f"updating {world.plan.seed}"), world.plan
        async with ControlClient(ADDRESS, deadline=3.0, patience=2.0) as client:
            await _changes(
                world, client, chance, plan.versions, plan.span, lambda to: ("update", _update(world, progress, to))
            )

    return main


def former(progress: ClientProgress) -> Main:
    """Make the updates that change keys, inputs, consumers and code of computations."""

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        chance, plan = Random(f"forms {world.plan.seed} {process.life}"), world.plan

        async def made(client: ControlClient) -> str:
            return f"version {await update_form(world, progress, client, chance)}"

        async with ControlClient(ADDRESS, deadline=3.0, patience=2.0) as client:
            await _changes(world, client, chance, plan.forms, plan.span, lambda to: ("form", made(to)))

    return main


async def update_form(
    world: World, progress: ClientProgress, client: ControlClient, chance: Random | None = None
) -> int:
    """Make a new version in another form that ``chance`` chooses, or in the current version's form without ``chance``.

    Each version is the base of only one update. So every version follows from the one before it.
    """
    plan = world.plan
    present = (await client.get_topology("simulated")).topology
    form = world.forms[present.spec.code.digest]
    if chance is not None:
        form = next_form(form, chance, plan.form_streams)
    renewed = bool(plan.renewed)
    package = package_of(plan, renewed=renewed, form=form, version=present.version)
    world.forms[package.digest] = form
    await client.upload_package(package.digest, package.data)
    spec = assemble(plan.text(renewed=renewed, form=form)).to_spec(package.reference())
    record = await client.update(spec, expected_version=present.version)
    world.history.note(f"form {form}")
    return record.version


def merger(progress: ClientProgress) -> Main:
    """Merge neighbouring intervals, if there are any, while the input arrives."""

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        chance, plan = Random(f"merging {world.plan.seed}"), world.plan
        async with ControlClient(ADDRESS, deadline=3.0, patience=2.0) as client:
            await _changes(world, client, chance, plan.merges, plan.span, lambda to: ("merge", _merge(to, chance)))

    return main


def splitter(progress: ClientProgress) -> Main:
    """Split intervals while the input arrives."""

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        chance, plan = Random(f"splitting {world.plan.seed}"), world.plan
        async with ControlClient(ADDRESS, deadline=3.0, patience=2.0) as client:
            await _changes(
                world,
                client,
                chance,
                plan.splits,
                plan.span,
                lambda to: ("split", _change(progress, to, chance, "split")),
            )

    return main


async def _changes(
    world: World,
    client: ControlClient,
    chance: Random,
    count: int,
    span: float,
    change: Callable[[ControlClient], tuple[str, Awaitable[str]]],
) -> None:
    """Make ``count`` changes in about ``span`` seconds, and record each outcome.

    ``change`` returns the name of a change and the awaitable that makes it.
    """
    for _ in range(count):
        await asyncio.sleep(chance.uniform(0.0, 2.0 * span / count))
        what, made = change(client)
        try:
            world.history.note(f"{what}: {await made}")
        except (RequestError, TimeoutError) as error:
            world.history.note(f"{what}: not done: {error}")


def tender(progress: ClientProgress) -> Main:
    """Resume what its failure policy has stopped: at another worker, or with a new version.

    This continues until all results have arrived.
    """

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        chance = Random(f"tending {world.plan.seed} {process.life}")
        async with ControlClient(ADDRESS, deadline=3.0, patience=2.0) as client:
            # In a wide plan no sink has an end, and silence means the end. A stopped interval is silent, too, so
            # resuming never stops there.
            while world.plan.wide or not all(settled(world, progress, sink) for sink in world.plan.sinks):
                await asyncio.sleep(chance.uniform(0.2, 1.0))
                for name, journal in _stopped(world):
                    try:
                        world.history.note(f"{journal} goes on: {await _go_on(world, progress, client, name, journal)}")
                    except (RequestError, TimeoutError) as error:
                        world.history.note(f"{journal} does not go on: {error}")

    return main


def _stopped(world: World) -> list[tuple[str, str]]:
    """The stopped intervals, each with its worker, as their metrics show."""
    alive = [(name, one) for name, one in world.workers.items() if world.processes[name].alive]
    cores = [(name, journal, hosted.built.core) for name, one in alive for journal, hosted in one.hosts.hosted.items()]
    return [(name, journal) for name, journal, core in cores if isinstance(core, IntervalCore) and core.stopped]


async def _go_on(world: World, progress: ClientProgress, client: ControlClient, name: str, journal: str) -> str:
    if world.chance.random() < 0.2:
        return await _update(world, progress, client)
    others = [other for other in WORKER_NAMES if other != name]
    moved = interval_pb2.IntervalName(journal=journal)
    record = await client.move_interval(moved, f"{world.chance.choice(others)}.0")
    return f"at {record.owner.worker_id}"


def _drawn(found: Sequence[interval_pb2.IntervalStatus], chance: Random) -> tuple[interval_pb2.IntervalName, str]:
    """One of the intervals, and the worker that must own it; empty: the master chooses."""
    name = interval_pb2.IntervalName(journal=chance.choice(found).interval.journal)
    return name, f"{chance.choice(WORKER_NAMES)}.0" if chance.random() < 0.7 else ""


async def _merge(client: ControlClient, chance: Random) -> str:
    """Merge an interval with its neighbour. The interval is not the last of its computation."""
    found = [one for one in await client.list_intervals() if one.interval.keys.HasField("end")]
    if not found:
        return "no neighbours"
    name, worker = _drawn(found, chance)
    return str(interval_from_proto((await client.merge_intervals(name, worker)).keys))


async def _update(world: World, progress: ClientProgress, client: ControlClient) -> str:
    """Make a new version: every interval is taken over.

    Some versions add or remove the computation that the plan adds.
    """
    plan, coming = world.plan, Random(f"added {world.plan.seed} {progress.versions}")
    progress.versions += 1
    if plan.added and progress.added is None and coming.random() < 0.7:
        progress.added = True
    elif progress.added and not progress.updating and coming.random() < 0.4:
        progress.added = False  # final: no version with it is in flight
    progress.updating += 1
    whole, renewed = bool(progress.added), bool(plan.renewed)
    if plan.form is not None:
        return f"version {await update_form(world, progress, client)}"
    package = package_of(plan, whole, renewed, version=progress.versions)
    await client.upload_package(package.digest, package.data)
    version = (await client.update(assemble(plan.text(whole, renewed)).to_spec(package.reference()))).version
    progress.updating -= 1
    for sink in plan.added_sinks if whole else ():
        if f"sub-{sink}" not in world.processes:
            world.start(f"sub-{sink}", subscriber(progress, sink))
    return f"version {version}{', with what is added' if whole else ''}"


async def _change(progress: ClientProgress, client: ControlClient, chance: Random, what: str) -> str:
    if what == "pause":
        progress.pauses += 1
        record = await client.pause("simulated")
        await asyncio.sleep(chance.uniform(0.0, 3.0))
        await client.resume("simulated")
        progress.pauses -= 1
        return f"version {record.version}"
    found = await client.list_intervals()
    if not found:
        return "no intervals"
    name, worker = _drawn(found, chance)
    if what == "move":
        return str(interval_from_proto((await client.move_interval(name, worker)).keys))
    if what == "split":
        at = f"{chr(chance.randint(33, 125))}{chr(chance.randint(33, 125))}".encode()
        return " and ".join(str(interval_from_proto(one.keys)) for one in await client.split_interval(name, at, worker))
    return str(interval_from_proto((await client.merge_intervals(name, worker)).keys))


async def _resumed(world: World, progress: ClientProgress, client: ControlClient) -> None:
    """End a pause whose outcome is unknown, whenever it shows.

    A master that does not follow the coordinator for a while may report the old state, so the check repeats. In a wide
    plan no sink has an end. A paused topology is silent there, too, so the check goes on as long as the run.
    """
    plan = world.plan
    while progress.pauses:
        sinks = (*plan.sinks, *(plan.added_sinks if progress.added else ()))
        if not plan.wide and all(settled(world, progress, sink) for sink in sinks):
            return
        try:
            record = (await client.get_topology("simulated")).topology
            if record.state == catalog.TOPOLOGY_STATE_PAUSED:
                await client.resume("simulated")
        except (RequestError, TimeoutError) as error:
            world.history.note(f"not resumed yet: {error}")
        await asyncio.sleep(0.5)
