"""Sequencers: one counter in the coordinator, for the owners of intervals and of shards (section 6.2)."""

from __future__ import annotations

from millwheel.coordination.contract import Compare, Coordinator, Put
from millwheel.model.catalog_keys import SEQUENCER

__all__ = ["draw_sequencer"]


async def draw_sequencer(coordinator: Coordinator) -> int:
    """Return a unique sequencer that is larger than all earlier ones.

    CoordinatorError: it is unknown whether a sequencer was drawn. The next draw is larger in any case.
    """
    while True:
        entry = await coordinator.get(SEQUENCER)
        number = (int(entry.value) if entry is not None else 0) + 1
        compare = Compare(SEQUENCER, entry.modified if entry is not None else 0)
        if (await coordinator.transact([compare], [Put(SEQUENCER, str(number).encode())])).committed:
            return number
