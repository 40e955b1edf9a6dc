"""A Cassandra that has just started is several times slower than a minute later: it is given work until it is steady.

Its JVM compiles meanwhile: a transaction of 300 bytes took it 7 ms of CPU in the first ten seconds of work, and
1.3 ms from the fortieth on.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from typing import Final

from bench.cluster.measures import percentile
from millwheel.store.cassandra import CassandraSettings, CassandraStore
from millwheel.store.contract import Append

__all__ = ["is_steady", "warm"]

_SIZES: Final = (200, 200, 200, 200, 2_000, 2_000, 20_000)
"""Bytes of an entry, a journal for each."""
_WINDOW: Final = 5.0
_STEADY: Final = 3
"""Windows of that many seconds; steady is who has got no faster in so many of them."""


def is_steady(medians: list[float]) -> bool:
    """Whether the last windows were no faster than the best before them, by a tenth."""
    return len(medians) > _STEADY and min(medians[-_STEADY:]) > 0.9 * min(medians[:-_STEADY])


async def warm(settings: CassandraSettings, longest: float) -> tuple[float, float]:
    """Append until that gets no faster, or for so many seconds.

    Returns what a small append took at the median of the first and the last window, in milliseconds.
    """
    store = await CassandraStore.open(settings)
    times: list[float] = []

    async def own(size: int) -> None:
        journal, blob, commit = f"warming.{uuid.uuid4().hex}", os.urandom(size), 0
        await store.create_journal(journal)
        await store.fence(journal, 1)
        try:
            while True:
                commit += 1
                asked = time.perf_counter()
                await store.append(journal, Append(1, commit, 0, (), blob))
                if size == _SIZES[0]:
                    times.append((time.perf_counter() - asked) * 1e3)
        finally:
            await store.drop_journal(journal)

    tasks = [asyncio.create_task(own(size)) for size in _SIZES]
    medians: list[float] = []
    try:
        until = time.monotonic() + longest
        while time.monotonic() < until and not is_steady(medians):
            times.clear()
            done, _ = await asyncio.wait(tasks, timeout=min(_WINDOW, longest))
            for task in done:
                task.result()
            if times:
                medians.append(percentile(times, 0.5))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()
    return medians[0], medians[-1]
