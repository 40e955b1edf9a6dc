"""Eviction: which key states leave memory when the cache is over its limit (section 8.3)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container
from typing import Final

from millwheel.worker.interval.cache.cells import CellCache, KeyCell

__all__ = ["evict_cells"]

_MAX_LOOKED_AT: Final = 64
"""Average number of cells that a call may examine while nothing can be evicted."""


def evict_cells(cache: CellCache, busy: Container[bytes], needed_at: Callable[[bytes], int | None]) -> int:
    """If the cache is over its limit, evict clean cells down to nine tenths of it. Returns how many it evicted.

    Cells go in this order: those without a timer and not used recently, those with timers from the farthest on, the
    rest. A key that waits for the end of its window is read last, however recently it was written (8.3).
    """
    if cache.bytes_held <= cache.limit_bytes:
        return 0
    if cache.skip_evictions > 0:
        cache.skip_evictions -= 1
        return 0
    # The search visits every cell. If it evicts too little, the next search follows a flush or a number of calls.
    cache.skip_evictions = len(cache) // _MAX_LOOKED_AT
    excess = cache.bytes_held - cache.limit_bytes * 9 // 10
    candidates = [(key, cell) for key, cell in cache.items() if not cell.dirty and key not in busy]
    if not candidates:
        return 0
    recent = max(cell.used for _, cell in candidates)
    oldest = min(cell.used for _, cell in candidates)
    middle = (recent + oldest) // 2

    def rank(candidate: tuple[bytes, KeyCell]) -> tuple[int, int]:
        key, cell = candidate
        at = needed_at(key)
        if at is not None:
            return 1, -at
        return (0 if cell.used <= middle else 2), cell.used

    evicted = 0
    average = max(1, cache.bytes_held // len(cache))
    for key, _ in heapq.nsmallest(max(1, excess // average), candidates, key=rank):
        cache.evict(key)
        evicted += 1
    if cache.bytes_held <= cache.limit_bytes:
        cache.skip_evictions = 0
    return evicted
