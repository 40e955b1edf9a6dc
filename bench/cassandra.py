"""The speed of the Cassandra store on one local node: ``python -m bench.cassandra [--periodic]``.

With ``--in-turns`` it compares appends on connections of their own with appends by the driver, and nothing else.

Warm the node up first: in its first minute, Cassandra is several times slower than afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import uvloop

from deploy.local.cassandra import CassandraCluster
from millwheel.model.incarnation import IncarnationId
from millwheel.store.cassandra import CassandraSettings, CassandraStore
from millwheel.store.contract import Append, PartId, StateRow

_ROWS = 10_000


def main() -> None:
    """Start a node, measure, and stop the node."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--periodic", action="store_true", help="commitlog_sync: periodic instead of batch")
    parser.add_argument("--points", help="host:port of a Cassandra that runs already")
    parser.add_argument("--in-turns", action="store_true", help="compare the two ways of appends")
    arguments = parser.parse_args()
    measure = _compare if arguments.in_turns else _measure
    if arguments.points:
        uvloop.run(measure((arguments.points,)))
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        CassandraCluster(Path(folder), commitlog_sync="periodic" if arguments.periodic else "batch") as cluster,
    ):
        uvloop.run(measure(cluster.contact_points))


async def _compare(contact_points: tuple[str, ...]) -> None:
    ways = {
        what: await CassandraStore.open(CassandraSettings(contact_points, keyspace="bench", direct_appends=direct))
        for what, direct in (("direct", True), ("driver", False))
    }
    try:
        for what, store in ways.items():
            await _appends(store, f"warming up, {what}", 16, 3_000, 1_000)
        for owners, count, size in ((1, 400, 1_000), (5, 1_000, 1_000), (5, 1_000, 16_000)):
            for _ in range(3):
                for what, store in ways.items():
                    await _appends(store, f"{owners} journals, {size} bytes, {what}", owners, count, size)
    finally:
        for store in ways.values():
            await store.close()


async def _measure(contact_points: tuple[str, ...]) -> None:
    store = await CassandraStore.open(CassandraSettings(contact_points, keyspace="bench"))
    try:
        await _appends(store, "warming up", 16, 3_000, 50_000)
        await _appends(store, "append of 100 bytes", 1, 2_000, 100)
        await _appends(store, "append of 50 KB", 1, 1_000, 50_000)
        await _appends(store, "append of 50 KB, 16 journals at once", 16, 4_000, 50_000)
        await _appends(store, "append of 50 KB, truncation point moving", 1, 1_000, 50_000, delete_every=50)
        await _rows(store)
        await _takeover(store)
    finally:
        await store.close()


async def _appends(store: CassandraStore, what: str, owners: int, count: int, size: int, delete_every: int = 0) -> None:
    blob = os.urandom(size)
    times: list[float] = []

    async def own() -> None:
        journal = f"bench.{uuid.uuid4().hex}"
        await store.create_journal(journal)
        await store.fence(journal, 1)
        truncation_point = 0
        for commit in range(1, count // owners + 1):
            begun = time.perf_counter()
            await store.append(journal, Append(1, commit, truncation_point, (), blob))
            times.append(time.perf_counter() - begun)
            if delete_every and commit % delete_every == 0:
                await store.delete_entries(journal, truncation_point + 1)
                truncation_point = commit

    await _timed(what, count, "appends", lambda: _all(own, owners), times)


async def _rows(store: CassandraStore) -> None:
    incarnation = IncarnationId(f"bench.{uuid.uuid4().hex}")
    for commit in range(1, 4):
        rows = [StateRow(b"key-%08d" % number, commit, os.urandom(100)) for number in range(_ROWS)]
        write = partial(store.write_states, incarnation, "j", 1, rows)
        await _timed("write_states of 10,000 rows", _ROWS, "rows", write)
    keys = [b"key-%08d" % number for number in range(_ROWS)]
    await _timed("read_states of 10,000 keys", _ROWS, "rows", lambda: store.read_states(incarnation, keys))
    await _timed("read_states of 1 key", 1, "rows", lambda: store.read_states(incarnation, keys[:1]))


async def _takeover(store: CassandraStore) -> None:
    journal = f"bench.{uuid.uuid4().hex}"
    await store.create_journal(journal)
    await store.fence(journal, 1)
    parts = tuple(PartId(f"timers/{number}", 1, 0) for number in range(8))
    for part in parts:
        await store.write_part(journal, part, os.urandom(500_000))
    for commit in range(1, 101):
        await store.append(journal, Append(1, commit, 0, parts, os.urandom(50_000)))
    await _timed("fence", 1, "fences", lambda: store.fence(journal, 2))
    await _timed("read 8 parts of 500 KB", 8, "parts", lambda: store.read_parts(journal, parts))
    await _timed("read 100 entries of 50 KB", 100, "entries", lambda: store.read_entries(journal, 1, 100))


async def _all(own: Callable[[], Awaitable[None]], owners: int) -> None:
    await asyncio.gather(*(own() for _ in range(owners)))


async def _timed(
    what: str, count: int, unit: str, work: Callable[[], Awaitable[object]], times: list[float] | None = None
) -> None:
    cpu, begun = time.process_time(), time.perf_counter()
    await work()
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    line = f"{what:40} {took * 1e3:9.1f} ms  {count / took:9.0f} {unit}/s  client CPU {cpu / count * 1e3:6.3f} ms each"
    if times:
        cuts = statistics.quantiles(times, n=100)
        line += f"  p50 {cuts[49] * 1e3:.2f}  p95 {cuts[94] * 1e3:.2f}  p99 {cuts[98] * 1e3:.2f} ms"
    print(line, flush=True)


if __name__ == "__main__":
    main()
