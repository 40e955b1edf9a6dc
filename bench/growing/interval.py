"""State that grows, in one interval on the embedded store, without a server.

First, what one append costs with 100 to 100,000 elements: in a list in pages, and in a list that is one value. Then the
memory of the process while one key gets so many megabytes of elements, and what it costs to read some of them.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

import millwheel as mw
from millwheel.embedded.database import EmbeddedDatabase
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.sdk.compiled import compile_computation
from millwheel.store.contract import StateStore
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.interval import IntervalConfig, IntervalCore, IntervalSettings
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    Acknowledge,
    Appended,
    AppendEntry,
    DeleteEntries,
    DeleteParts,
    Delivery,
    FenceJournal,
    FlushStates,
    Opened,
    PartsWritten,
    ReadStates,
    Report,
    Started,
    StatesFlushed,
    StatesRead,
    Tick,
    WriteParts,
)

__all__ = ["measure"]

_SIZES = (100, 1_000, 10_000, 100_000)
_MEASURED = 200
"""Single appends at each size."""
_SENDER = Sender("injector/in/p", 1, None, "injector/in")
_COMPUTATION, _JOURNAL = IncarnationId("growing.1"), "growing.1.j1"


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


class Owner:
    """One interval on a store. Each effect is performed before the next event."""

    def __init__(self, computation: mw.Computation[Any, Any], store: StateStore, cache: int) -> None:
        topology = mw.Topology("growing")
        topology.source("in", str)
        topology.add(computation, name="growing", inputs={"in": mw.key(lambda value: "k")})
        settings = IntervalSettings(cache_bytes=cache)
        config = IntervalConfig(
            _COMPUTATION, _JOURNAL, ALL_KEYS, 1, frozenset({"injector/in"}), {}, settings=settings
        )  # fmt: skip
        self.core = IntervalCore(config, compile_computation(topology, "growing"), {}, lambda consumer, key: "")
        self.store = store
        self.now = 1_000_000
        self.position = 0
        self.journaled = self.rows_read = 0

    async def open(self) -> None:
        """Take the interval over."""
        await self.store.create_journal(_JOURNAL)
        await self._post(Started())

    async def add(self, *values: str) -> None:
        """Deliver records in one batch, and wait until they are committed."""
        ids = PositionIds("in/p", self.position, list(range(self.position, self.position + len(values))))
        self.position += len(values)
        encoded = [msgspec.msgpack.encode(value) for value in values]
        count = len(values)
        await self._post(
            Delivery(_COMPUTATION, _JOURNAL, "in", _SENDER, ids, [b"k"] * count, encoded, [1] * count, self.position)
        )

    async def rest(self) -> None:
        """Time passes: rows are written, and the cache shrinks."""
        for _ in range(3):
            self.now += 70_000_000
            await self._post(Tick())

    async def _post(self, event: Any) -> None:
        events = deque([event])
        while events:
            self.now += 10
            for effect in self.core.step(events.popleft(), self.now):
                if (answer := await self._perform(effect)) is not None:
                    events.append(answer)

    async def _perform(self, effect: Any) -> Any:
        store = self.store
        match effect:
            case FenceJournal():
                return Opened(await store.fence(effect.journal, effect.sequencer), {}, [])
            case AcceptSequencer():
                return Accepted(MIN_TIMESTAMP)
            case AppendEntry():
                self.journaled += len(effect.append.entry)
                await store.append(effect.journal, effect.append)
                return Appended(effect.append.commit)
            case FlushStates():
                await store.write_states(effect.incarnation, effect.journal, effect.sequencer, effect.rows)
                return StatesFlushed(effect.number)
            case ReadStates():
                self.rows_read += len(effect.keys)
                return StatesRead(effect.keys, await store.read_states(effect.incarnation, effect.keys))
            case WriteParts():
                for part, blob in effect.parts.items():
                    await store.write_part(effect.journal, part, blob)
                return PartsWritten(effect.number)
            case DeleteEntries():
                await store.delete_entries(effect.journal, effect.below)
            case DeleteParts():
                await store.delete_parts(effect.journal, effect.parts)
            case Acknowledge() | Report():
                pass
            case _:
                raise TypeError(f"nothing performs the effect {effect!r:.200}")
        return None


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
