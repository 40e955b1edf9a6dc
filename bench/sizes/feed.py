"""The injector process: `python -m bench.sizes.feed ADDRESS CONSUMERS RECORDS KEYS BYTES ZIPF`.

It first sends each key once, so that all have a state. Then it prints ``ready`` and the longest time in which no call
of ``send_many`` returned. It waits for a line of its input, and prints the seconds from the next send until all records
are committed, and the longest time of the same kind.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

import uvloop

from bench.sizes import program
from bench.sizes.program import Sized
from millwheel.client.injector import Injector

__all__ = ["batches", "chosen_keys"]

_BATCH: Final = 1_000
_BATCH_BYTES: Final = 1 << 20


def chosen_keys(records: int, keys: int, zipf: float) -> list[int]:
    """The key of each record, equal in every run. ``zipf``: the exponent of the skew, 0 for none.

    >>> chosen_keys(5, 1_000, 1.2)
    [0, 167, 57, 0, 8]
    """
    draw = random.Random(1)
    if not zipf:
        return [draw.randrange(keys) for _ in range(records)]
    weights = list(accumulate((rank + 1) ** -zipf for rank in range(keys)))
    return draw.choices(range(keys), cum_weights=weights, k=records)


def batches(numbers: Iterable[int], payload: bytes) -> Iterator[list[Sized]]:
    """Records of these keys, as many in a list as are sent at once."""
    size = max(1, min(_BATCH, _BATCH_BYTES // max(1, len(payload))))
    batch: list[Sized] = []
    for number in numbers:
        batch.append(Sized(f"key-{number:08}", payload))
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


async def feed(address: str, consumers: int, numbers: Sequence[int], keys: int, payload: bytes) -> tuple[float, float]:
    """Send one record of each key, then those of ``numbers``.

    Returns:
        The seconds of the second part, and the longest of its calls.
    """
    topology = getattr(program, f"consumed_by_{consumers}")
    async with Injector("records", address=address, process="bench", topology=topology) as injector:
        sent = 0

        async def send(prepared: Iterable[list[Sized]]) -> float:
            nonlocal sent
            longest, before = 0.0, time.perf_counter()
            for batch in prepared:
                at = [1_000 * (sent + number) for number in range(len(batch))]
                await injector.send_many(batch, at, positions=range(sent, sent + len(batch)))
                sent += len(batch)
                longest, before = max(longest, time.perf_counter() - before), time.perf_counter()
            await injector.flush()
            return max(longest, time.perf_counter() - before)

        filling = await send(batches(range(keys), b""))
        prepared = list(batches(numbers, payload))
        print("ready", filling, flush=True)
        sys.stdin.readline()
        began = time.perf_counter()
        longest = await send(prepared)
        return time.perf_counter() - began, longest


if __name__ == "__main__":
    where, *given = sys.argv[1:]
    count, records, keys, size = (int(one) for one in given[:4])
    spread = chosen_keys(records, keys, float(given[4]))
    print(*uvloop.run(feed(where, count, spread, keys, bytes(size))), flush=True)
