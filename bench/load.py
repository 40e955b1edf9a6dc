"""The input of the keyed count, equal in every run: records of 100 bytes, of which a few are late."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from bench.topologies import Event

__all__ = ["BATCH", "LATE_SHARE", "MAX_LATE_US", "PER_MILLISECOND", "USUAL", "KeyDraw", "batches", "expected_results"]

PER_MILLISECOND = 100
LATE_SHARE = 0.001
MAX_LATE_US = 500_000
BATCH = 1_000
_RECORD_BYTES = 100


@dataclass(frozen=True, slots=True)
class KeyDraw:
    """How the keys of records are drawn: uniformly, or by Zipf's law with exponent ``zipf``."""

    count: int = 10_000
    zipf: float = 0.0


USUAL = KeyDraw()


def batches(records: int, keys: KeyDraw = USUAL, seed: int = 1) -> Iterator[tuple[list[str], list[Event], list[int]]]:
    """(keys, values, timestamps in microseconds) in batches, in the order of sending. Each record has 100 bytes."""
    draw, width = random.Random(seed), max(5, len(str(keys.count - 1)))
    weights = list(accumulate((rank + 1) ** -keys.zipf for rank in range(keys.count))) if keys.zipf else None
    spare = bytes(_RECORD_BYTES - len(msgspec.msgpack.encode(Event(f"key-{0:0{width}}", b""))))
    known: dict[int, Event] = {}
    step = 1_000 // PER_MILLISECOND
    for first in range(0, records, BATCH):
        chosen = draw.choices(range(keys.count), cum_weights=weights, k=min(BATCH, records - first))
        for number in chosen:
            if number not in known:
                known[number] = Event(f"key-{number:0{width}}", spare)
        stamps = [(first + index) * step for index in range(len(chosen))]
        for index in range(len(stamps)):
            if draw.random() < LATE_SHARE:
                stamps[index] = max(0, stamps[index] - draw.randrange(MAX_LATE_US))
        yield [known[one].key for one in chosen], [known[one] for one in chosen], stamps


def expected_results(records: int, keys: KeyDraw = USUAL, window: int = 1_000_000) -> int:
    """The expected number of results: of pairs of a key and a window. ``window``: its microseconds."""
    pairs: set[tuple[str, int]] = set()
    for names, _, stamps in batches(records, keys):
        pairs.update(zip(names, (stamp // window for stamp in stamps), strict=True))
    return len(pairs)
