"""The input of the keyed count, equal in every run: 100-byte records with uniform keys, of which a few are late."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from bench.topologies import Event

__all__ = ["BATCH", "KEYS", "LATE_SHARE", "MAX_LATE_US", "PER_MILLISECOND", "batches", "expected_results"]

KEYS = 10_000
PER_MILLISECOND = 100
LATE_SHARE = 0.001
MAX_LATE_US = 500_000
BATCH = 1_000
_RECORD_BYTES = 100


def _values() -> list[Event]:
    """One record of exactly 100 bytes for each key."""
    names = [f"key-{number:05d}" for number in range(KEYS)]
    spare = _RECORD_BYTES - len(msgspec.msgpack.encode(Event(names[0], b"")))
    values = [Event(name, bytes(spare)) for name in names]
    sizes = {len(msgspec.msgpack.encode(value)) for value in values}
    if sizes != {_RECORD_BYTES}:
        raise AssertionError(f"records of {sizes} bytes instead of {_RECORD_BYTES}")
    return values


def batches(records: int, seed: int = 1) -> Iterator[tuple[list[str], list[Event], list[int]]]:
    """(keys, values, timestamps in microseconds) in batches, in the order of sending."""
    draw = random.Random(seed)
    values = _values()
    names = [f"key-{number:05d}" for number in range(KEYS)]
    step = 1_000 // PER_MILLISECOND
    for first in range(0, records, BATCH):
        chosen = draw.choices(range(KEYS), k=min(BATCH, records - first))
        stamps = [(first + index) * step for index in range(len(chosen))]
        for index in range(len(stamps)):
            if draw.random() < LATE_SHARE:
                stamps[index] = max(0, stamps[index] - draw.randrange(MAX_LATE_US))
        yield [names[one] for one in chosen], [values[one] for one in chosen], stamps


def expected_results(records: int, seed: int = 1) -> int:
    """The expected number of results, which is the number of (key, second) pairs."""
    pairs: set[tuple[str, int]] = set()
    for keys, _, stamps in batches(records, seed):
        pairs.update(zip(keys, (stamp // 1_000_000 for stamp in stamps), strict=True))
    return len(pairs)
