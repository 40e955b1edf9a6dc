"""A draw from the coordinator's counter, for the owner of an authority shard (section 6.2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from millwheel.coordination.contract import Compare, Coordinator, Put
from millwheel.model.catalog_keys import SEQUENCER

__all__ = ["draw_sequencer"]


async def draw_sequencer(coordinator: Coordinator, reserve: Callable[[int], Awaitable[tuple[int, int]]]) -> int:
    """Return a unique sequencer that is larger than all earlier ones.

    ``reserve`` is :func:`millwheel.store.sequencer_allocation.reserve_sequencers` of the cluster's store. It returns
    the first and the last number of a new block.

    CoordinatorError, or an error of ``reserve``: it is unknown whether a sequencer was drawn. The next draw is larger
    in any case.
    """
    first, last = await reserve(0)
    while True:
        entry = await coordinator.get(SEQUENCER)
        drawn = int(entry.value) if entry is not None else 0
        if drawn >= last:
            first, last = await reserve(drawn)
            continue
        number = max(drawn + 1, first)
        compare = Compare(SEQUENCER, entry.modified if entry is not None else 0)
        if (await coordinator.transact([compare], [Put(SEQUENCER, str(number).encode())])).committed:
            return number
