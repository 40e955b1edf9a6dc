"""What may be left after all results have arrived: no owner has unfinished work, and journals are short (G13)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from millwheel.client.subscription import Subscription
from millwheel.rpc.failures import RequestError
from simulation.clients import ADDRESS
from simulation.held_ids import pending_ids
from simulation.owners import serving
from simulation.process import Process
from simulation.world import Main, World

__all__ = ["check_leftovers"]

_ENTRY_COST: Final = 256
"""The bytes that the authority counts for an entry in addition to its size."""
_MOMENT: Final = 5.0
"""Virtual seconds in which messages in flight arrive after all faults have ended.

It allows some attempts to connect.
"""
_AT_REST: Final = 10
"""The allowance in entries beyond one base's worth, if no base is on its way and the owner has appended.

Each commit of an owner captures a base that is due.
"""
_OPENINGS: Final = 3
"""How many owners in succession one interval may have while its run ends: operators may still pause and resume it."""
_SLACK: Final = 60
"""The allowance in entries beyond two bases' worth. An append names a base, and there may be no further append."""
_BURST: Final = 150
"""The allowance while a base is on its way. It took up to 50 ms, in which an interval may commit every 0.5 ms."""


async def check_leftovers(world: World, sinks: Sequence[str], sound_at: float) -> None:
    """Report a violation for everything that should have been removed.

    A run never reaches the bounds that its plan does not override, so these are not checked. ``sinks``: the streams
    whose subscribers have read them to the end. ``sound_at``: the virtual time at which the faults end. Some processes
    may still wait for a notification when all results have arrived.
    """
    before = _on_their_way(world)
    if world.plan.settled:
        await _check_ended(world)
    if before:  # a new owner of an interval sends again what its receivers already have
        for sink in sinks:
            world.start(f"last-{sink}", _last_subscriber(sink))
        await asyncio.sleep(max(0.0, sound_at - world.loop.time()) + _MOMENT)
        for place, text in _on_their_way(world).items():
            if place in before:
                world.violated(f"{text} are left at the end (G13)")
    if long := _long_journals(world):  # what a base has passed is deleted by a request of its own, after the append
        await asyncio.sleep(_MOMENT)
        for journal in sorted(long.keys() & (still := _long_journals(world)).keys()):
            world.violated(f"{still[journal]} (G13)")


async def _check_ended(world: World) -> None:
    """Report each owner that keeps what it has of a removed computation. An owner that opens meanwhile has its time."""
    ended = _of_ended(world)
    for _ in range(_OPENINGS):
        if not ended:
            break
        await asyncio.sleep(2 * world.plan.settled + _MOMENT)
        still = _of_ended(world)
        for journal, _, incarnation in sorted(ended & still):
            world.violated(f"{journal} keeps what it has of {incarnation}, which was removed (G13)")
        ended = still - ended


def _of_ended(world: World) -> set[tuple[str, int, str]]:
    """By journal and sequencer: the removed computations of which the owner keeps ids or sequencers."""
    found = set[tuple[str, int, str]]()
    for name, core in serving(world):
        if world.processes[name].alive:
            ended = set(core.state.dedup.computations()) - world.workers[name].catalog.maps.keys()
            found.update((core.state.config.journal, core.state.config.sequencer, one) for one in ended)
    return found


def _last_subscriber(stream: str) -> Main:
    """Acknowledge what a stream's log gets after its end, until the run is over.

    Computations without exactly-once delivery produce late duplicates. A log at its cap refuses them as long as no
    subscriber acknowledges.
    """

    async def main(world: World, process: Process) -> None:
        while True:
            subscription = Subscription(stream, cursor="reader", decode=len, address=ADDRESS, patience=20.0)
            try:
                async with subscription:
                    async for batch in subscription:
                        await subscription.ack(batch.next_offset)
            except (RequestError, TimeoutError) as error:
                world.history.note(f"subscribes again: {error}")
            await asyncio.sleep(0.5)

    return main


def _on_their_way(world: World) -> dict[tuple[str, int], str]:
    """Unfinished work of owners, by journal and sequencer."""
    found = {}
    for name, core in serving(world):
        process, config, state = world.processes[name], core.state.config, core.state
        left = state.intake.records, len(state.outbox), pending_ids(state.dedup)
        if process.alive and any(left):
            text = "{} records, {} outbound batches and {} ids".format(*left)
            found[config.journal, config.sequencer] = f"{process}, {config.journal}: {text}"
    return found


def _long_journals(world: World) -> dict[str, str]:
    """What is wrong with journals that have too many entries, above their truncation points or in all."""
    found = {}
    bounds = {
        ".log.": world.plan.tuning["log"].get("checkpoint_entries"),
        "authority.": world.plan.tuning["authority"].get("snapshot_bytes"),
        "": world.plan.tuning["core"].get("checkpoint_entries"),
    }
    owned = [core.state.journal for _, core in serving(world)]
    bases = {journal.name for journal in owned if not journal.base_at_rest}
    short = {one.name for one in owned if one.may_write_base() and world.appended_by.get(one.name) == one.sequencer}
    for journal, held in world.store.inner.journals.items():
        kind = next(one for one in bounds if one in journal)
        bound = bounds[kind]
        if bound is None:
            continue
        entries = held.head.commit - held.head.truncation_point
        most = 2 * (bound // _ENTRY_COST if kind == "authority." else bound) + (_BURST if journal in bases else _SLACK)
        if journal in short:
            most = bound + _AT_REST
        if max(entries, len(held.entries)) > most:
            text = f"{entries} entries above the truncation point of {journal}, and {len(held.entries)} in all"
            found[journal] = f"{text}, are left at the end: {most} are the most"
    return found
