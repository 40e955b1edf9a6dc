"""What may be left when everything has come out: nothing on its way in any owner, and short journals (G13)."""

from __future__ import annotations

from typing import Final

from millwheel.worker.interval import IntervalCore, Phase
from simulation.world import World

__all__ = ["check_leftovers"]

_ENTRY_COST: Final = 256
"""What the authority counts an entry as, in bytes, beside its size."""
_SLACK: Final = 40
"""Entries more than two bases' worth: a base is named by an append, and perhaps nothing is appended any more."""


def check_leftovers(world: World) -> None:
    """Complain of what nobody needs any more. Bounds that the plan leaves as they are, no run reaches."""
    for name, worker in world.workers.items():
        if not world.processes[name].alive:
            continue
        for journal, hosted in worker.hosted.items():
            core, head = hosted.built.core, world.store.inner._head(journal)
            if isinstance(core, IntervalCore) and core.phase is Phase.SERVING:
                state = core.state
                if head is None or head.sequencer != state.config.sequencer:
                    continue  # it has a successor, and has not heard
                left = state.intake.records, len(state.outbox), state.dedup.pending_ids
                if any(left):
                    told = "{} records, {} shipments and {} ids".format(*left)
                    world.violated(f"{world.processes[name]}, {journal}: {told} are left at the end (G13)")
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
