"""What may be left when everything has come out: nothing on its way in any owner, and short journals (G13)."""

from __future__ import annotations

import asyncio
from typing import Final

from simulation.owners import serving
from simulation.world import World

__all__ = ["check_leftovers"]

_ENTRY_COST: Final = 256
"""What the authority counts an entry as, in bytes, beside its size."""
_MOMENT: Final = 5.0
"""Virtual seconds in which what is on its way arrives, where nothing is wrong any more: some tries to connect."""
_SLACK: Final = 60
"""Entries more than two bases' worth: a base is named by an append, and perhaps nothing is appended any more."""


async def check_leftovers(world: World, sound_at: float) -> None:
    """Complain of what nobody needs any more. Bounds that the plan leaves as they are, no run reaches.

    ``sound_at``: when the faults end. What has come out may have left somebody behind who is not told yet.
    """
    before = _on_their_way(world)
    if before:  # whoever has just taken an interval over sends anew what its receivers have
        await asyncio.sleep(max(0.0, sound_at - world.loop.time()) + _MOMENT)
        for place, told in _on_their_way(world).items():
            if place in before:
                world.violated(f"{told} are left at the end (G13)")
    _check_journals(world)


def _on_their_way(world: World) -> dict[tuple[str, int], str]:
    """What owners have that is not ACKed, by journal and sequencer."""
    found = {}
    for name, core in serving(world):
        process, config, state = world.processes[name], core.state.config, core.state
        left = state.intake.records, len(state.outbox), state.dedup.pending_ids
        if process.alive and any(left):
            told = "{} records, {} shipments and {} ids".format(*left)
            found[config.journal, config.sequencer] = f"{process}, {config.journal}: {told}"
    return found


def _check_journals(world: World) -> None:
    """Of a journal what lies beyond its floor is short."""
    bounds = {
        ".log.": world.plan.tuning["log"].get("checkpoint_entries"),
        "authority.": world.plan.tuning["authority"].get("snapshot_bytes"),
        "": world.plan.tuning["core"].get("checkpoint_entries"),
    }
    for journal, held in world.store.inner._journals.items():
        kind = next(one for one in bounds if one in journal)
        bound = bounds[kind]
        if bound is None:
            continue
        entries = held.head.commit - held.head.floor
        most = 2 * (bound // _ENTRY_COST if kind == "authority." else bound) + _SLACK
        if max(entries, len(held.entries)) > most:
            told = f"{entries} entries above the floor of {journal}, and {len(held.entries)} in all"
            world.violated(f"{told}, are left at the end: {most} are the most (G13)")
