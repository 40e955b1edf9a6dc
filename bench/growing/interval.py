"""State that grows, in one interval on the embedded store, without a server.

First, what one append costs with 100 to 100,000 elements: in a list in pages, and in a list that is one value. Then the
memory of the process while one key gets so many megabytes of elements, and what it costs to read some of them.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

import millwheel as mw
from bench.interval_owner import IntervalOwner
from millwheel.embedded.database import EmbeddedDatabase
from millwheel.store.contract import StateStore
from millwheel.worker.interval import IntervalSettings

__all__ = ["measure"]

_SIZES = (100, 1_000, 10_000, 100_000)
_MEASURED = 200
"""Single appends at each size."""


class Payments(mw.GrowingState):
    """The list in pages."""

    items: mw.ListState[str]


class Paged(mw.Computation[str, Payments]):
    """Appends each record. ``at N`` reads an element, ``sum`` reads the last thousand."""

    def process_record(self, ctx: mw.Context[Payments], record: mw.Record[str]) -> None:
        """Append or read."""
        what, _, argument = record.value.partition(" ")
        if what == "at":
            assert ctx.state.items[int(argument)]
        elif what == "sum":
            assert len(ctx.state.items[-1_000:]) == 1_000
        else:
            ctx.state.items.append(record.value)


class Whole(mw.Computation[str, list[str]]):
    """Appends each record to a list that is one value."""

    def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[str]) -> None:
        """Append."""
        ctx.state.append(record.value)


class Owner(IntervalOwner):
    """The interval of one key."""

    def __init__(self, computation: mw.Computation[Any, Any], store: StateStore, cache: int) -> None:
        key = mw.key(lambda value: "k")
        super().__init__(computation, str, key, store, IntervalSettings(cache_bytes=cache))

    async def add(self, *values: str) -> None:
        """Deliver records in one batch, and wait until they are committed."""
        count = len(values)
        await self.deliver([b"k"] * count, [msgspec.msgpack.encode(value) for value in values], [1] * count)


async def _appends(computation: mw.Computation[Any, Any], store: StateStore, table: Table) -> None:
    owner = Owner(computation, store, 256 << 20)
    await owner.open()
    count = 0
    for size in _SIZES:
        while count < size:
            some = min(1_000, size - count)
            await owner.add(*[f"{number:020}" for number in range(some)])
            count += some
        await owner.rest()
        journaled, times, used = owner.journaled, [], time.process_time()
        for number in range(_MEASURED):
            began = time.perf_counter()
            await owner.add(f"{number:020}")
            times.append(time.perf_counter() - began)
        count += _MEASURED
        row = statistics.median(times) * 1e3, (time.process_time() - used) * 1e3 / _MEASURED
        size_of_entry = (owner.journaled - journaled) / _MEASURED
        name = type(computation).__name__.lower()
        table.add_row(name, f"{size:,}", f"{row[0]:.2f}", f"{row[1]:.2f}", f"{size_of_entry:,.0f}")


async def _large(megabytes: int, store: StateStore) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    owner = Owner(Paged(), store, 64 << 20)
    await owner.open()
    element, began, most = "x" * 490, time.perf_counter(), 0
    count = megabytes * 1_000_000 // 500
    for first in range(0, count, 1_000):
        await owner.add(*[f"{number:010}{element}" for number in range(first, min(count, first + 1_000))])
        if first % 20_000 == 0:
            await owner.rest()
        most = max(most, process.memory_info().rss)
    spent = time.perf_counter() - began
    await owner.rest()
    cells = owner.core.state.cells
    print(f"{count:,} elements, {megabytes} MB, in {spent:.0f} s: {spent / count * 1e6:.0f} µs each")
    print(f"the process grew by {(most - before) / 1e6:.0f} MB; cells are counted with {cells.bytes_held / 1e6:.0f} MB")
    for what in ("at 0", f"at {count // 2}", f"at {count // 3}", "sum", "at 7"):
        rows, began = owner.rows_read, time.perf_counter()
        await owner.add(what)
        print(f"{what:>12}: {(time.perf_counter() - began) * 1e3:6.2f} ms, {owner.rows_read - rows} rows read")


def measure(megabytes: int) -> None:
    """Measure and print."""
    table = Table(box=None, header_style="bold")
    for title in ("LIST", "ELEMENTS", "MS AN APPEND", "CPU MS", "BYTES JOURNALED"):
        table.add_column(title, justify="right")

    async def run(measure: Any) -> None:
        with tempfile.TemporaryDirectory(prefix="millwheel-bench-") as directory:
            async with await EmbeddedDatabase.open(Path(directory, "db")) as database:
                await measure(database.store)

    asyncio.run(run(lambda store: _appends(Paged(), store, table)))
    asyncio.run(run(lambda store: _appends(Whole(), store, table)))
    Console().print(table)
    asyncio.run(run(lambda store: _large(megabytes, store)))
