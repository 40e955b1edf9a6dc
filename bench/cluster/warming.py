"""A Cassandra that has just started is several times slower than a minute later: it is given work first.

Its JVM compiles meanwhile. A transaction of 300 bytes took it 2.6 ms of CPU in the first 6,000 of them, 1.3 ms in the
fourth 6,000, and 0.75 ms from then on.
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

__all__ = ["warm"]

_SIZES: Final = (200, 200, 200, 200, 2_000, 2_000, 20_000)
"""Bytes of an entry, a journal for each."""
_ENOUGH: Final = 40_000
_WINDOW: Final = 5.0


async def warm(settings: CassandraSettings, longest: float) -> tuple[float, float]:
    """Append often enough for the JVM, but for no more than so many seconds.

    Returns what a small append took at the median of the first and the last seconds, in milliseconds.
    """
    store = await CassandraStore.open(settings)
    times: list[float] = []
    appends = 0

    async def own(size: int) -> None:
        nonlocal appends
        journal, blob, commit = f"warming.{uuid.uuid4().hex}", os.urandom(size), 0
        await store.create_journal(journal)
        await store.fence(journal, 1)
        try:
            while True:
                commit += 1
                asked = time.perf_counter()
                await store.append(journal, Append(1, commit, 0, (), blob))
                appends += 1
                if size == _SIZES[0]:
                    times.append((time.perf_counter() - asked) * 1e3)
        finally:
            await store.drop_journal(journal)

    tasks = [asyncio.create_task(own(size)) for size in _SIZES]
    medians: list[float] = []
    try:
        until = time.monotonic() + longest
        while time.monotonic() < until and appends < _ENOUGH:
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
