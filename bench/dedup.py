"""The cost of the duplicate check in microseconds per record: check, accept, encode and commit together.

Run: python bench/dedup.py [records in a delivery …]
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterator

import msgspec

from millwheel.model.keys import ALL_KEYS
from millwheel.worker.dedup import Dedup, DeliveryIds, OpaqueIds, PositionIds, Sender, split_ids

RECORDS = 400_000
SENDER = Sender("upstream.1.j1", 1, ALL_KEYS, "upstream.1")
Deliveries = Iterator[tuple[DeliveryIds, int]]
encode = msgspec.msgpack.Encoder().encode


def runs(size: int) -> Deliveries:
    """Positions without gaps: the receiver gets all productions of the sender's commits."""
    for commit in range(RECORDS // size):
        first = commit << 20
        yield PositionIds("s", max(0, commit - 8) << 20, list(range(first, first + size))), commit


def scattered(size: int) -> Deliveries:
    """About every fourth position, in order: the receiver is one of several."""
    chance = random.Random(1)
    for commit in range(RECORDS // size):
        first = commit << 20
        positions = [first + 4 * index + chance.randrange(4) for index in range(size)]
        yield PositionIds("s", max(0, commit - 8) << 20, positions), commit


def complete(size: int) -> Deliveries:
    """The same, stated to be complete: the receiver remembers ranges."""
    for ids, commit in runs(size):
        assert isinstance(ids, PositionIds)
        yield PositionIds(ids.sequence, ids.mark, range(ids.positions[0], ids.positions[-1] + 1), (), True), commit


def opaque(size: int) -> Deliveries:
    """Random ids in the order of their timestamps."""
    for number in range(RECORDS // size):
        yield OpaqueIds(split_ids(os.urandom(16 * size))), number


def measure(name: str, size: int, deliveries: Deliveries, *, kept: int | None = None, again: bool = False) -> None:
    """Print the cost. ``kept``: the number of deliveries after which the watermark passes opaque ids."""
    dedup = Dedup(ALL_KEYS, "receiver.1.j1")
    dedup.admit("s")
    prepared = list(deliveries)
    keys = [b"key"] * size
    stamped = [(ids, [number] * size) for ids, number in prepared]
    gc.collect()
    started = time.perf_counter()
    for ids, timestamps in stamped:
        verdict = dedup.check(ids, keys, timestamps, SENDER)
        delta = dedup.take([(verdict, None)])
        encode(delta.to_wire())
        dedup.committed(delta)
        if again:
            dedup.check(ids, keys, timestamps, SENDER)
        if kept is not None:
            dedup.advance(SENDER.group, timestamps[0] - kept, 0)
            for sealed in dedup.seal():
                dedup.segment_stored(sealed.name)
    spent = time.perf_counter() - started
    count = size * len(stamped)
    print(f"{name:<44} {size:>6} {spent / count * 1e6:>9.3f} us/record")


def main(sizes: list[int]) -> None:
    """Measure each workload at each size of delivery."""
    workloads: list[Callable[[int], None]] = [
        lambda size: measure("positions, runs", size, runs(size)),
        lambda size: measure("positions, runs, complete", size, complete(size)),
        lambda size: measure("positions, scattered", size, scattered(size)),
        lambda size: measure("positions, runs, each delivered twice", size, runs(size), again=True),
        lambda size: measure("opaque, in memory (10,000 kept)", size, opaque(size), kept=10_000 // size),
        lambda size: measure("opaque, sealing (200,000 kept)", size, opaque(size), kept=200_000 // size),
        lambda size: measure("opaque, sealing (all kept)", size, opaque(size), kept=RECORDS),
    ]
    for workload in workloads:
        for size in sizes:
            workload(size)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [10, 100, 1_000, 5_000])
