"""`python -m bench.cache`: the cache of an interval against its size, by watermark and by LRU (8.3, figure 16).

Each key buffers records in its state until the low watermark passes the end of their window. Then its timer reads the
state once: "the most recently modified row is the one least likely to be fetched soon". An interval's core runs this on
the embedded store, once with MillWheel's eviction and once with eviction of what was used least recently. The figures
are the CPU time of the process for each record, with that of the store's threads, and the rows that were read.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

import millwheel as mw
from bench.interval_owner import IntervalOwner
from bench.report import Figure, Row, Series, print_figures, write_figures
from millwheel.embedded.database import EmbeddedDatabase
from millwheel.worker.interval import IntervalSettings, pump
from millwheel.worker.interval.cache.cells import CellCache
from millwheel.worker.interval.cache.eviction import evict_cells

__all__ = ["POLICIES", "main", "measure"]

_PAYLOAD: Final = 200
_LENGTHS: Final = (2, 10, 40)
"""Lengths of windows, in rounds."""
_ROUND: Final = 1_000_000
"""Event time of a round, in microseconds."""
POLICIES: Final = ("watermark", "lru")


class Part(msgspec.Struct, array_like=True):
    """A record: what its key keeps until ``due``."""

    key: str
    due: int
    payload: bytes


class Buffer(mw.Computation[Part, list[Part]]):
    """Keeps records until the ends of their windows."""

    def process_record(self, ctx: mw.Context[list[Part]], record: mw.Record[Part]) -> None:
        """Keep the record."""
        ctx.state.append(record.value)
        ctx.set_timer(mw.Timestamp(record.value.due), str(record.value.due))

    def process_timer(self, ctx: mw.Context[list[Part]], timer: mw.Timer) -> None:
        """Drop what was kept for this window: a user's program would add it up."""
        ctx.state = [part for part in ctx.state if part.due > timer.timestamp]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of work."""

    keys: int = 10_000
    rounds: int = 80
    runs: int = 2
    shares: tuple[float, ...] = (0.1, 0.2, 0.4, 0.6, 0.8, 1.2)
    """Sizes of the cache, as shares of what all keys need."""


_WHOLE: Final = Sizes()
_QUICK: Final = Sizes(1_000, 30, 1, (0.1, 1.2))


def rounds_of(sizes: Sizes) -> Iterator[list[Part]]:
    """The records of each round: a twentieth of the keys, each for a window of one of three lengths."""
    draw = random.Random(1)
    names = [f"{number:06}" for number in range(sizes.keys)]
    for number in range(1, sizes.rounds + 1):
        yield [
            Part(key, (number + draw.choice(_LENGTHS)) * _ROUND, draw.randbytes(_PAYLOAD))
            for key in draw.sample(names, sizes.keys // 20)
        ]


@contextmanager
def evicting(policy: str) -> Iterator[None]:
    """Intervals of this process evict by this policy within the block."""

    def by_use(cache: CellCache, busy: Container[bytes], needed_at: Callable[[bytes], int | None]) -> int:
        return evict_cells(cache, busy, lambda key: None)  # no key is known to be needed, so the last use decides

    module: Any = pump
    module.evict_cells = by_use if policy == "lru" else evict_cells
    try:
        yield
    finally:
        module.evict_cells = evict_cells


async def run(policy: str, cache_bytes: int, sizes: Sizes) -> tuple[float, float, int]:
    """CPU microseconds and read rows for each record, and the most bytes in the cache after a round."""
    encode = msgspec.msgpack.Encoder().encode
    settings = IntervalSettings(cache_bytes=cache_bytes)
    records = most = 0
    with tempfile.TemporaryDirectory(prefix="millwheel-bench-") as folder, evicting(policy):
        async with await EmbeddedDatabase.open(Path(folder, "db")) as database:
            owner = IntervalOwner(Buffer(), Part, mw.key("key"), database.store, settings)
            await owner.open()
            spent = 0.0
            for number, parts in enumerate(rounds_of(sizes), start=1):
                keys, values = [part.key.encode() for part in parts], [encode(part) for part in parts]
                began = time.process_time()
                await owner.deliver(keys, values, [number * _ROUND] * len(parts))
                await owner.advance(number * _ROUND + 1)
                owner.now += _ROUND
                spent += time.process_time() - began
                records += len(parts)
                most = max(most, owner.core.state.cells.bytes_held)
    return spent / records * 1e6, owner.rows_read / records, most


def measure(sizes: Sizes) -> list[Row]:
    """Each size of the cache with each policy. A figure is the best of its runs."""
    _, _, needed = asyncio.run(run("watermark", 1 << 40, sizes))
    rows: list[Row] = [Figure("cache.needed_mb", needed / 1e6, "MB", (needed / 1e6,))]
    points: dict[str, list[tuple[float, float]]] = {policy: [] for policy in POLICIES}
    for share in sizes.shares:
        found: dict[str, list[tuple[float, float, int]]] = {policy: [] for policy in POLICIES}
        for policy in POLICIES * sizes.runs:  # by turns, so that a slow minute hits both
            found[policy].append(asyncio.run(run(policy, int(needed * share), sizes)))
        for policy, runs in found.items():
            cpu = tuple(one[0] for one in runs)
            rows.append(Figure(f"cache.{policy}.{share:g}.cpu_us", min(cpu), "µs", cpu))
            rows.append(Figure(f"cache.{policy}.{share:g}.reads", runs[0][1], "rows/record", (runs[0][1],)))
            points[policy].append((needed * share / 1e6, min(cpu)))
    rows += [Series(f"cache.{policy}.cpu_us", "µs", tuple(line)) for policy, line in points.items()]
    return rows


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.cache", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few keys and rounds, to see that it works")
    parser.add_argument("--out", type=Path, default=Path("build/bench-cache.json"))
    options = parser.parse_args()
    rows = measure(_QUICK if options.quick else _WHOLE)
    print_figures(rows)
    write_figures(rows, options.out)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
