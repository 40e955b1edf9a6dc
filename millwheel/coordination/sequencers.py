"""Sequencers: one counter in the coordinator, from which those of owners and of shards are drawn (section 6.2)."""

from __future__ import annotations

from millwheel.coordination.contract import Compare, Coordinator, Put
from millwheel.core.catalog_keys import SEQUENCER

__all__ = ["draw_sequencer"]


async def draw_sequencer(coordinator: Coordinator) -> int:
    """A sequencer that is larger than all before it, and nobody else's.

    CoordinatorError: it is not known which were drawn; the next draw is larger in any case.
    """
    while True:
        entry = await coordinator.get(SEQUENCER)
        number = (int(entry.value) if entry is not None else 0) + 1
        compare = Compare(SEQUENCER, entry.modified if entry is not None else 0)
        if (await coordinator.transact([compare], [Put(SEQUENCER, str(number).encode())])).committed:
            return number
