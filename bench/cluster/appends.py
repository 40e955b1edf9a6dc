"""The time of one append to a journal in Cassandra, at the rate of the stage's journals, while nothing else runs."""

from __future__ import annotations

import time
import uuid
from typing import Final

from bench.cluster.measures import percentile, quantiles
from bench.cluster.pacing import beats
from bench.report import Figure, Row, Series
from millwheel.store.cassandra import CassandraSettings, CassandraStore
from millwheel.store.contract import Append

__all__ = ["measure"]

_RATE: Final = 100
_BYTES: Final = 400
"""About an entry of one record."""


async def measure(settings: CassandraSettings, seconds: float) -> list[Row]:
    """Percentiles of the append, in milliseconds, and all of its quantiles."""
    store = await CassandraStore.open(settings)
    try:
        taken = await _appends(store, seconds)
    finally:
        await store.close()
    found: list[Row] = []
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        value = percentile(taken, share)
        found.append(Figure(f"append.{name}_ms", value, "ms", (value,)))
    return [*found, Series("append.quantiles", "ms by share", quantiles(taken))]


async def _appends(store: CassandraStore, seconds: float) -> list[float]:
    journal = f"appends.{uuid.uuid4().hex}"
    taken: list[float] = []
    await store.create_journal(journal)
    await store.fence(journal, 1)
    async for number in beats(_RATE, seconds):
        began = time.perf_counter()
        await store.append(journal, Append(1, number + 1, 0, (), bytes(_BYTES)))
        taken.append((time.perf_counter() - began) * 1e3)
    await store.drop_journal(journal)
    return taken
