"""Eviction: which key states leave memory when the cache is over its limit (section 8.3)."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from millwheel.worker.interval.cache.cells import CellCache

__all__ = ["evict_cells"]

_MAX_LOOKED_AT: Final = 64
"""Average number of states that a call may examine while nothing can be evicted."""


def evict_cells(cache: CellCache, busy: Container[bytes], needed_at: Callable[[bytes], int | None]) -> int:
    """If the cache is over its limit, bring it down to nine tenths of it. Returns how many states it evicted.

    First all states are packed that nothing uses. If that is not enough, they go in this order: those without a timer
    and not used recently, those with timers from the farthest on, the rest. A key that waits for the end of its window
    is read last, however recently it was written (8.3).
    """
    if cache.bytes_held <= cache.limit_bytes:
        return 0
    if cache.skip_evictions > 0:
        cache.skip_evictions -= 1
        return 0
    # The search may visit every state. If it evicts too little, the next one follows a flush or a number of calls.
    cache.skip_evictions = len(cache) // _MAX_LOOKED_AT
    cache.pack_clean(busy)
    evicted = _chosen(cache, busy, needed_at, cache.bytes_held - cache.limit_bytes * 9 // 10)
    for key in evicted:
        cache.evict(key)
    if cache.bytes_held <= cache.limit_bytes:
        cache.skip_evictions = 0
    return len(evicted)


def _chosen(
    cache: CellCache, busy: Container[bytes], needed_at: Callable[[bytes], int | None], excess: int
) -> list[bytes]:
    """Packed states of together ``excess`` bytes, or all that may leave memory."""
    chosen: list[bytes] = []
    waiting: list[tuple[int, bytes, int]] = []
    recent: list[tuple[int, bytes, int]] = []
    half = cache.packed_count // 2
    for place, (key, size) in enumerate(cache.packed()):
        if excess <= 0:
            return chosen
        if key in busy:
            continue
        at = needed_at(key)
        if at is not None:
            waiting.append((-at, key, size))
        elif place <= half:
            chosen.append(key)
            excess -= size
        else:
            recent.append((place, key, size))
    waiting.sort()
    for _, key, size in (*waiting, *recent):
        if excess <= 0:
            break
        chosen.append(key)
        excess -= size
    return chosen
