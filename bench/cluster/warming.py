"""A Cassandra that has just started is several times slower than a minute later: it is given work first."""

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

_SIZES: Final = (200, 2_000, 20_000)
"""Bytes of an entry, a journal for each."""


async def warm(settings: CassandraSettings, seconds: float) -> tuple[float, float]:
    """Append for so long; what a small append took at the median in the first and the last quarter, in milliseconds."""
    store = await CassandraStore.open(settings)
    began = time.monotonic()
    times: list[float] = []

    async def own(size: int) -> None:
        journal, blob = f"warming.{uuid.uuid4().hex}", os.urandom(size)
        await store.create_journal(journal)
        await store.fence(journal, 1)
        commit = 0
        while time.monotonic() < began + seconds:
            commit += 1
            asked = time.perf_counter()
            await store.append(journal, Append(1, commit, 0, (), blob))
            if size == _SIZES[0]:
                times.append((time.perf_counter() - asked) * 1e3)
        await store.drop_journal(journal)

    try:
        await asyncio.gather(*(own(size) for size in _SIZES))
    finally:
        await store.close()
    quarter = max(1, len(times) // 4)
    return percentile(times[:quarter], 0.5), percentile(times[-quarter:], 0.5)
