"""The watermark-aware cache compared with LRU (8.3): `python -m bench.cache`.

Each key buffers records in the state of a window until the low watermark passes the window's end. Then the state is
read once: "the most recently modified row is the one least likely to be fetched soon". The figure is the number of
reads of state rows per record.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from millwheel.worker.interval.cache.cells import CELL_OVERHEAD_BYTES, CellCache
from millwheel.worker.interval.cache.eviction import evict_cells

__all__ = ["main"]

_KEYS = 20_000
_STATE = b"x" * 200
_CELL_BYTES = CELL_OVERHEAD_BYTES + 6 + 3 * len(_STATE)


@dataclass(slots=True)
class Access:
    """One use of a key's state, and the time at which its timer is then due. None: no timer."""

    key: bytes
    due: int | None


def windows(rounds: int, seed: int = 1) -> list[Access]:
    """Keys buffer in bursts.

    The bursts belong to windows with different ends, and each state is read at the window's end.
    """
    draw = random.Random(seed)
    names = [b"%06d" % number for number in range(_KEYS)]
    accesses: list[Access] = []
    ending: dict[int, list[bytes]] = {}
    for now in range(rounds):
        for key in draw.sample(names, _KEYS // 20):
            due = now + draw.choice((2, 10, 40))
            accesses.append(Access(key, due))
            ending.setdefault(due, []).append(key)
        accesses.extend(Access(key, None) for key in ending.pop(now, ()))
    return accesses


def reads_of_cells(accesses: list[Access], capacity: int) -> int:
    """The number of row reads with the interval's own cache."""
    cache = CellCache(capacity * _CELL_BYTES, evicted=True)
    due: dict[bytes, int | None] = {}
    reads = 0
    for number, access in enumerate(accesses):
        cell = cache.cached().get(access.key)
        if cell is None:
            reads += 1
            cell = cache.insert(access.key, _STATE)
        cell.used = number // 100
        due[access.key] = access.due
        evict_cells(cache, (), due.get)
    return reads


def reads_of_lru(accesses: list[Access], capacity: int) -> int:
    """The number of row reads with an LRU cache of the same number of cells."""
    cache: OrderedDict[bytes, None] = OrderedDict()
    reads = 0
    for access in accesses:
        if access.key in cache:
            cache.move_to_end(access.key)
            continue
        reads += 1
        cache[access.key] = None
        if len(cache) > capacity:
            cache.popitem(last=False)
    return reads


def main() -> None:
    """Print the reads per hundred uses at several cache sizes."""
    accesses = windows(200)
    table = Table(box=None, header_style="bold")
    for title in ("CACHED KEYS", "SHARE", "READS, LRU", "READS, BY WATERMARK", "FEWER"):
        table.add_column(title, justify="right")
    for share in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8):
        capacity = int(_KEYS * share)
        lru, cells = reads_of_lru(accesses, capacity), reads_of_cells(accesses, capacity)
        row = (f"{capacity:,}", f"{share:.0%}", f"{lru / len(accesses):.1%}", f"{cells / len(accesses):.1%}")
        table.add_row(*row, f"{1 - cells / lru:.0%}")
    Console().print(table)


if __name__ == "__main__":
    main()
