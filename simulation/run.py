"""One run: from a seed's plan to the verdict."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final
from unittest.mock import patch

from millwheel.worker.process.worker import Worker
from simulation.blocks import DIVIDED, FAILED, OUTSIDE, SEEN
from simulation.blocks.plain import FLAKINESS
from simulation.cached_state import check_cached_state
from simulation.calls import channel_of
from simulation.checks import Checks
from simulation.clients import ClientProgress, operator, reader, subscriber
from simulation.clocks import replaced
from simulation.cluster import Routed, start_cluster, tuned
from simulation.ending import ender
from simulation.evidence import Evidence
from simulation.faults import Faults
from simulation.files import file_reader, file_writer, files_within
from simulation.forgotten import check_forgotten
from simulation.guest_clients import guest, prober, retirer
from simulation.history import EXPECTED
from simulation.leftovers import check_leftovers
from simulation.lookups import looker
from simulation.loop import SimulatedLoop, StuckError
from simulation.neighbour import NEIGHBOUR, neighbour
from simulation.owners import OwnerChecks
from simulation.plan import LETTERS
from simulation.process import Process
from simulation.replays import replayer
from simulation.reshaping import former, merger, reshaper, splitter, tender, updater
from simulation.returning import returner
from simulation.seed_plan import plan_for
from simulation.spark import EXECUTORS, executor, spark_driver
from simulation.world import Main, World

__all__ = ["Verdict", "run_seed", "simulated"]

_KEPT: Final[list[World]] = []

_AFTER: Final = 20.0
"""Virtual seconds for which the sinks are still read after an operator has ended the topology."""
_GRACE: Final = 45.0
"""Virtual seconds after the end of all faults within which all results must arrive.

The longest delay that has an explanation: a connection that no longer answers is closed after 30 seconds.
"""
_COPIES: Final = 8
"""The most copies that one injected record is likely to have at one computation."""
_IN_PARTS: Final = 0.3
"""Seconds that a commit in many parts takes at a store that answers slowly."""
_CALM: Final = 15.0
"""Virtual seconds that the last fault may come after the input."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a seed. ``steps``: steps of the loop; ``seconds``: virtual seconds."""

    seed: int
    violations: list[str]
    history: str
    digest: str
    steps: int
    seconds: float


def run_seed(seed: int, directory: Path, arrange: Callable[[World], None] | None = None) -> Verdict:
    """Run a seed; ``arrange`` may change the world before the run begins.

    A process runs at most one seed. What the run leaves behind, above all its tasks, must not be finalized before the
    process ends. See :mod:`simulation.forking`.
    """
    gc.disable()
    loop = SimulatedLoop(Random(f"loop {seed}"))
    world = World(plan_for(seed), loop, directory)
    _KEPT.append(world)
    with simulated(world, seed):
        _run(world, arrange)
    return Verdict(seed, world.violations, world.history.text(), world.history.digest(), loop.steps, loop.time())


@contextmanager
def simulated(world: World, seed: int) -> Iterator[None]:
    """Inside this context, the product runs in ``world``: with its clocks, randomness, log, network and workers."""
    with (
        replaced(world.loop, seed),
        world.history.listening(),
        patch("grpc.aio.insecure_channel", lambda address, options=None: channel_of(world.network, address)),
        tuned(world),
        files_within(world),
        world.store.patched(),
        world.taps.listening(world.violated),
    ):
        yield


def _run(world: World, arrange: Callable[[World], None] | None) -> None:
    SEEN.clear()
    DIVIDED.clear()
    FAILED.clear()
    OUTSIDE.begin(seed=world.plan.seed)
    asyncio.set_event_loop(world.loop)
    progress = ClientProgress()
    checks = Checks(world, progress)
    owners, evidence = OwnerChecks(world), Evidence(world)
    faults = Faults(world)
    world.store.watch = checks
    world.loop.set_exception_handler(lambda _, context: _unhandled(world, context))
    try:
        world.loop.run_until_complete(world.loop.create_task(_life(world, progress, faults, arrange)))
    except StuckError as error:
        world.violated(f"{error}: {_unfinished(world, progress, faults)} (G8)")
    if world.store.reached:
        world.history.note(f"WAYS {', '.join(f'{way} {count}' for way, count in world.store.reached.items())}")
    checks.conclude()
    if any(progress.sunk.values()):
        owners.conclude()
        evidence.conclude()


async def _life(
    world: World, progress: ClientProgress, faults: Faults, arrange: Callable[[World], None] | None
) -> None:
    """Run the cluster from its start until all results have arrived."""
    start_cluster(world)
    if arrange is not None:
        arrange(world)
    world.start("operator", operator(progress))
    for one in world.plan.readers:
        if one.files:
            world.start(f"writer-{one.stream}-{one.process}", file_writer(progress, one))
        inject = file_reader if one.files else spark_driver if one.spark else reader
        world.start(f"{one.stream}-{one.process}", _begins(one.begins, inject(progress, one)))
    for name in EXECUTORS if any(one.spark for one in world.plan.readers) else ():
        world.start(name, executor(progress))
    for sink in world.plan.sinks:
        world.start(f"sub-{sink}", subscriber(progress, sink))
    world.start("shaper", reshaper(progress))
    _visit(world, progress)
    if world.plan.ending:
        world.start("ender", ender(progress))
    faults.arrange()
    for share in (0.4, 0.8):
        world.later(world.plan.span * share, _look, world)
    while left := _unfinished(world, progress, faults):
        if world.loop.time() > _limit(world, faults):
            world.violated(f"it does not end: {left} (G8)")
            return
        _notice_joining(world, progress)
        await asyncio.sleep(0.25)
    world.history.note("everything has come out")
    check_cached_state(world)
    if not world.plan.ending:
        await check_leftovers(world, (*world.plan.sinks, *_neighbours(world)), faults.ends_at)
        await check_forgotten(world, faults.turned)


def _begins(at: float, main: Main) -> Main:
    """A process that does nothing before a virtual time."""

    async def later(world: World, process: Process) -> None:
        await asyncio.sleep(max(0.0, at - world.loop.time()))
        await main(world, process)

    return later


def _notice_joining(world: World, progress: ClientProgress) -> None:
    """Record the moment at which the last worker routes records to a computation that was added later."""
    alive = [one for name, one in world.workers.items() if world.processes[name].alive]
    if not alive:
        return  # the power is off
    added = progress.added and all("extra" in _incarnations(one, "simulated") for one in alive)
    if added and progress.joined is None:
        progress.joined = world.loop.time()
        world.history.note("every worker knows of what was added")
    stays = progress.neighbour_steps >= 2 * world.plan.neighbour_lives - 1
    last = progress.neighbour_incarnation if stays else None
    if last and progress.neighbour_joined is None and all(_incarnations(one, NEIGHBOUR) == last for one in alive):
        progress.neighbour_joined = world.loop.time()
        world.history.note("every worker knows of the neighbour")


def _incarnations(worker: Worker, topology: str) -> Mapping[str, str]:
    """The incarnations by which the worker routes records.

    They follow its catalog with a delay, because code loads first.
    """
    assert isinstance(worker.hosts.routing, Routed)
    return worker.hosts.routing.routed.get(topology, {})


def _limit(world: World, faults: Faults) -> float:
    """The virtual time from which an unfinished run is a failure: no known delay explains it."""
    limit, plan = faults.ends_at + _GRACE, world.plan
    if plan.wide or plan.ending:
        limit += _CALM + _AFTER
    if any(node["feedback"] for node in plan.nodes):
        # If all queues of a cycle are full, each production that is stored as a straggler lets one record continue.
        limit += plan.straggling * sum(len(reader.inputs) for reader in plan.readers)
    if plan.tuning["bounds"]:
        # A full queue admits its senders one by one, and a slow hook processes record by record. Each injected record
        # may have become several, through chaff and through two paths.
        slow = [node["arguments"][0] / 1000 for node in plan.nodes if node["kind"] == "slow" and node["arguments"]]
        limit += _COPIES * max(slow, default=0.0) * sum(len(reader.inputs) for reader in plan.readers)
    if "entry_bytes" in plan.tuning["core"]:
        # Each commit of a state that grows is written in many parts, one after the other.
        limit += _COPIES * _IN_PARTS * sum(len(reader.inputs) for reader in plan.readers)
    if plan.tended and any(node["kind"] == "flaky" for node in plan.nodes):
        # The policy stops the computation at a failure. Its owner first runs the records of a key one by one, so each
        # life commits few of them. The tender resumes it up to a second later.
        limit += _COPIES * FLAKINESS * sum(len(reader.inputs) for reader in plan.readers)
    return limit + _late_timers(world, faults)


def _late_timers(world: World, faults: Faults) -> float:
    """The extra seconds that a processing-time timer may wait, because the clock that set it was ahead."""
    return faults.turned if world.plan.clocked else 0.0


def _visit(world: World, progress: ClientProgress) -> None:
    """Start the clients that only some plans have."""
    plan = world.plan
    clients: tuple[tuple[object, str, Callable[[ClientProgress], Main]], ...] = (
        (plan.versions, "updater", updater),
        (plan.returns_at, "returner", returner),
        (plan.forms, "former", former),
        (plan.merges, "merger", merger),
        (plan.splits, "splitter", splitter),
        (plan.tended, "tender", tender),
        (plan.retired, "retirer", retirer),
        (plan.probed, "prober", prober),
        (plan.replays, "replayer", replayer),
        (plan.looked_up, "looker", looker),
    )
    for wanted, name, client in clients:
        if wanted:
            world.start(name, client(progress))
    if plan.neighbour and not plan.wide and not plan.ending:
        world.start(NEIGHBOUR, neighbour(progress))
    for sink in plan.sinks if plan.guests else ():
        if sink != LETTERS:
            world.start(f"guest-{sink}", guest(progress, sink))


def _look(world: World) -> None:
    world.history.note(f"{check_cached_state(world)} intervals at rest are as the store has them")


def _unfinished(world: World, progress: ClientProgress, faults: Faults) -> str:
    """What the run still waits for; empty if it waits for nothing."""
    if world.plan.ending:
        if progress.over is None:
            return f"the {world.plan.ending}"
        return "what is on its way" if world.loop.time() < progress.over + _AFTER else ""
    if world.plan.wide:
        calm = max(progress.news, world.plan.span * 1.2 + _CALM) + _AFTER + _late_timers(world, faults)
        return "" if len(progress.finished) == len(world.plan.readers) and world.loop.time() > calm else "silence"
    if world.plan.returns_at and progress.returned is None:
        return "the topology to come back"
    waits = [f"{one.stream}/{one.process} to finish" for one in world.plan.readers]
    done = {f"{stream}/{process} to finish" for stream, process in progress.finished}
    added = [sink for sink in world.plan.added_sinks if progress.added and f"sub-{sink}" in world.processes]
    sinks = [
        f"the end of {sink}" for sink in (*world.plan.sinks, *added, *_neighbours(world)) if sink not in progress.ended
    ]
    feed = world.plan.feed
    fed = 0 if feed is None else sum(len(split.records) for split in feed.splits)
    store = [f"{fed} records in the store"] if len(OUTSIDE.stored) < fed else []
    return ", ".join([*(one for one in waits if one not in done), *sinks, *store])


def _neighbours(world: World) -> list[str]:
    """The streams of the second topology, if it exists in this run."""
    return world.plan.neighbour["outputs"] if world.plan.neighbour and NEIGHBOUR in world.processes else []


def _unhandled(world: World, context: dict[str, object]) -> None:
    error, where = context.get("exception"), context.get("task") or context.get("future") or context.get("handle")
    if isinstance(error, StuckError):
        raise error
    text = f"unhandled {type(error).__name__}: {error} ({context.get('message')}: {where})"
    if isinstance(error, EXPECTED):
        world.history.note(text)
    else:
        world.violated(text)
