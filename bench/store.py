"""Measures the embedded store: append latency, flush throughput, and how each affects the other.

    python bench/store.py [--db DIRECTORY] [--appends N]

The directory is created and removed. Put it on the disk that you want to measure. One row stands for one record's share
of a commit, 100 bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from millwheel.embedded.database import EmbeddedDatabase
from millwheel.model.incarnation import IncarnationId
from millwheel.store.contract import Append, StateRow
from millwheel.store.embedded import EmbeddedStore

ROW = 100
FLUSH = 10_000


class Bench:
    """One run. Each measurement adds a row to the table."""

    def __init__(self, store: EmbeddedStore, appends: int) -> None:
        self.store = store
        self.appends = appends
        self.commits: dict[str, int] = {}
        self.table = Table(title=f"Embedded store, {os.cpu_count()} cores")
        for column in ("what", "p50 ms", "p99 ms", "max ms", "per second"):
            self.table.add_column(column, justify="left" if column == "what" else "right")

    def report(self, what: str, latencies: list[float], rate: float) -> None:
        ordered = sorted(latencies)
        quantiles = (statistics.median(ordered), ordered[len(ordered) * 99 // 100], ordered[-1])
        self.table.add_row(what, *(f"{value * 1e3:.2f}" for value in quantiles), f"{rate:,.0f}")

    async def journal(self, name: str) -> str:
        await self.store.create_journal(name)
        await self.store.fence(name, 1)
        self.commits[name] = 0
        return name

    async def append(self, name: str, payload: bytes, *, sync: bool = True) -> float:
        started = time.perf_counter()
        self.commits[name] += 1
        await self.store.append(name, Append(1, self.commits[name], 0, (), payload, sync))
        return time.perf_counter() - started

    async def appends_of(self, rows: int, *, sync: bool = True) -> None:
        """One owner appends, one append after the other."""
        name = await self.journal(f"append-{rows}-{sync}")
        payload = os.urandom(rows * ROW)
        started = time.perf_counter()
        latencies = [await self.append(name, payload, sync=sync) for _ in range(self.appends)]
        rate = self.appends / (time.perf_counter() - started)
        self.report(f"append of {rows} rows{'' if sync else ', not synced'}", latencies, rate)

    async def appends_at_once(self, owners: int) -> None:
        """Many owners append, each with one append in flight: group commit."""
        names = [await self.journal(f"owner-{owners}-{number}") for number in range(owners)]
        payload = os.urandom(10 * ROW)
        each = max(self.appends // owners, 20)

        async def one(name: str) -> list[float]:
            return [await self.append(name, payload) for _ in range(each)]

        started = time.perf_counter()
        latencies = [latency for each in await asyncio.gather(*(one(name) for name in names)) for latency in each]
        rate = len(latencies) / (time.perf_counter() - started)
        self.report(f"append of 10 rows by {owners} owners at once", latencies, rate)

    async def flushes(self, computation: str, *, newer: bool, count: int = 10) -> None:
        """Flush the same keys repeatedly, by newer commits or (as in a replay) by the same commit."""
        name = await self.journal(f"flush-{computation}")
        latencies = []
        for number in range(count):
            if newer or not number:
                await self.append(name, b"")
            rows = self.rows(self.commits[name])
            started = time.perf_counter()
            await self.store.write_states(IncarnationId(computation), name, 1, rows)
            latencies.append(time.perf_counter() - started)
        kind = "newer than any before" if newer else "compared with stored ones"
        self.report(f"write_states of {FLUSH:,} rows, {kind} (rows/s)", latencies, FLUSH * count / sum(latencies))

    def rows(self, commit: int) -> list[StateRow]:
        blob = os.urandom(ROW)
        return [StateRow(b"key-%08d" % number, commit, blob) for number in range(FLUSH)]

    async def appends_during_flushes(self) -> None:
        """The latency of an append while rows are flushed, 10,000 at a time."""
        name, other = await self.journal("beside"), await self.journal("beside-flushed")
        payload = os.urandom(10 * ROW)
        prepared = [self.rows(commit) for commit in range(1, 21)]
        for _ in prepared:
            await self.append(other, b"")

        async def flush() -> None:
            for rows in prepared:
                await self.store.write_states(IncarnationId("beside"), other, 1, rows)

        flushing = asyncio.ensure_future(flush())
        started = time.perf_counter()
        latencies = []
        while not flushing.done():
            latencies.append(await self.append(name, payload))
        elapsed = time.perf_counter() - started
        self.report("append of 10 rows while rows are flushed", latencies, len(latencies) / elapsed)
        flushed = f"{FLUSH * len(prepared) / elapsed:,.0f}"
        self.table.add_row("    rows flushed meanwhile (rows/s)", "", "", "", flushed)

    async def loop_stalls(self) -> None:
        """For how long the event loop is blocked while rows are flushed."""
        name = await self.journal("stalls")
        await self.append(name, b"")
        rows = self.rows(1)
        flushing = asyncio.ensure_future(
            self._repeat(lambda: self.store.write_states(IncarnationId("stalls"), name, 1, rows), 20)
        )
        stalls = []
        started = time.perf_counter()
        while not flushing.done():
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            stalls.append(max(time.perf_counter() - before - 0.001, 0))
        self.report(
            "delay of the event loop while rows are flushed", stalls, len(stalls) / (time.perf_counter() - started)
        )

    async def _repeat(self, work: Callable[[], Awaitable[None]], times: int) -> None:
        for _ in range(times):
            await work()

    async def reads(self) -> None:
        """Point reads of state, single and in batches, and the reads of entries in a takeover."""
        keys = [b"key-%08d" % number for number in range(FLUSH)]
        latencies = []
        for number in range(1000):
            started = time.perf_counter()
            await self.store.read_states(IncarnationId("newer"), keys[number : number + 1])
            latencies.append(time.perf_counter() - started)
        self.report("read_states of 1 key", latencies, 1000 / sum(latencies))
        started = time.perf_counter()
        await self.store.read_states(IncarnationId("newer"), keys)
        elapsed = time.perf_counter() - started
        self.report(f"read_states of {FLUSH:,} keys (keys/s)", [elapsed], FLUSH / elapsed)

    async def takeover_after_churn(self, entries: int = 20_000, kept: int = 100) -> None:
        """Read the entries above the truncation point after all entries below it were deleted."""
        name = await self.journal("churn")
        payload = os.urandom(10 * ROW)
        pending: list[Awaitable[None]] = []
        for commit in range(1, entries + 1):
            truncation_point = max(commit - kept, 0)
            pending.append(self.store.append(name, Append(1, commit, truncation_point, (), payload, sync=False)))
            if commit % 100 == 0:
                await asyncio.gather(*pending)
                pending.clear()
                await self.store.delete_entries(name, truncation_point + 1)
        started = time.perf_counter()
        found = await self.store.read_entries(name, entries - kept + 1, entries)
        elapsed = time.perf_counter() - started
        assert len(found) == kept
        self.report(f"read_entries of {kept} behind {entries - kept:,} deleted (entries/s)", [elapsed], kept / elapsed)


async def measure(path: Path, appends: int) -> Table:
    async with await EmbeddedDatabase.open(path) as database:
        bench = Bench(database.store, appends)
        for rows in (1, 10, 100):
            await bench.appends_of(rows)
        await bench.appends_of(10, sync=False)
        for owners in (4, 32, 256):
            await bench.appends_at_once(owners)
        await bench.flushes("newer", newer=True)
        await bench.flushes("compared", newer=False)
        await bench.appends_during_flushes()
        await bench.loop_stalls()
        await bench.reads()
        await bench.takeover_after_churn()
    started = time.perf_counter()
    async with await EmbeddedDatabase.open(path):
        elapsed = time.perf_counter() - started
    bench.report(f"opening it again ({len(bench.commits)} journals)", [elapsed], 1 / elapsed)
    return bench.table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--db", type=Path, help="an empty directory on the disk to be measured; default: a temporary one"
    )
    parser.add_argument("--appends", type=int, default=2000)
    arguments = parser.parse_args()
    path = arguments.db or Path(tempfile.mkdtemp(prefix="millwheel-bench-"))
    try:
        Console(width=120).print(uvloop.run(measure(path, arguments.appends)))
    finally:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
