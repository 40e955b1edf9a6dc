"""A Cassandra that has just started is several times slower than a minute later: it is given work first.

Its JVM compiles meanwhile. A transaction of 300 bytes took it 2.6 ms of CPU in the first 6,000 of them, 1.3 ms in the
fourth 6,000, and 0.75 ms from then on; and after 40,000 of them its compiler was still busy with half a core for
another 25 seconds. So the work goes on until the compiler rests, whatever its amount.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.cluster.measures import percentile
from millwheel.store.cassandra import CassandraSettings, CassandraStore
from millwheel.store.contract import Append, PartId, StateRow

__all__ = ["compiling", "warm"]

_SIZES: Final = (200, 200, 2_000, 20_000)
"""Bytes of an entry, a journal for each. Few, so that the compiler gets its half of a machine with two cores."""
_ROWS: Final = 200
"""State rows in one write, which follows some appends."""
_APPENDS: Final = 20
_ENOUGH: Final = 20_000
"""Appends that are made in any case."""
_WINDOW: Final = 5.0
_RESTING: Final = 0.1
"""Of a core, in a window of so many seconds: the compiler has done what this work asks of it."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def compiling(process: int) -> float:
    """Seconds of CPU that the JVM's compiler has used."""
    seconds = 0.0
    for thread in Path(f"/proc/{process}/task").iterdir():
        try:
            told = (thread / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since it was listed: threads come and go
        name, _, numbers = told.partition("(")[2].rpartition(")")
        if "CompilerThre" in name:
            user, system = numbers.split()[11:13]
            seconds += (int(user) + int(system)) / _TICKS
    return seconds


async def warm(settings: CassandraSettings, compiled: Callable[[], float], longest: float) -> tuple[float, float]:
    """Work until the compiler rests, whose seconds so far ``compiled`` tells; no longer than ``longest`` seconds.

    Returns what a small append took at the median of the first and the last seconds, in milliseconds.
    """
    store = await CassandraStore.open(settings)
    try:
        return await _Warming(store).until_it_rests(compiled, longest)
    finally:
        await store.close()


class _Warming:
    """Work for a store: entries of several sizes and state rows, as intervals write them."""

    def __init__(self, store: CassandraStore) -> None:
        self._store = store
        self._times: list[float] = []
        self._appends = 0

    async def until_it_rests(self, compiled: Callable[[], float], longest: float) -> tuple[float, float]:
        """See :func:`warm`."""
        tasks = [asyncio.create_task(self._interval(size)) for size in _SIZES]
        medians: list[float] = []
        until = time.monotonic() + longest
        try:
            while time.monotonic() < until:
                self._times.clear()
                before, window = compiled(), min(_WINDOW, longest)
                done, _ = await asyncio.wait(tasks, timeout=window, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
                if self._times:
                    medians.append(percentile(self._times, 0.5))
                if self._appends >= _ENOUGH and compiled() - before < _RESTING * window:
                    break
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return medians[0], medians[-1]

    async def _interval(self, size: int) -> None:
        """Commits one after the other; behind them rows are written and read, and the journal kept short."""
        journal = _Journal(self._store, f"warming.{uuid.uuid4().hex}", os.urandom(size))
        await journal.open()
        try:
            while True:
                asked = time.perf_counter()
                await journal.append()
                self._appends += 1
                if size == _SIZES[0]:
                    self._times.append((time.perf_counter() - asked) * 1e3)
                if journal.commit % _APPENDS == 0:
                    await journal.write_and_read_rows()
                if journal.commit % (5 * _APPENDS) == 0:
                    await journal.move_floor()
        finally:
            await journal.drop()


class _Journal:
    """What an interval does to the store, without an interval."""

    def __init__(self, store: CassandraStore, name: str, blob: bytes) -> None:
        self.commit = 0
        self._store = store
        self._name = name
        self._blob = blob
        self._floor = 0
        self._parts: tuple[PartId, ...] = ()

    async def open(self) -> None:
        """Create and fence it."""
        await self._store.create_journal(self._name)
        await self._store.fence(self._name, 1)

    async def append(self) -> None:
        """One commit."""
        self.commit += 1
        await self._store.append(self._name, Append(1, self.commit, self._floor, self._parts, self._blob))

    async def write_and_read_rows(self) -> None:
        """State rows as a flush writes them, and as misses of the cache read them; half of these are not there."""
        keys = [b"k%07d" % number for number in range(2 * _ROWS)]
        rows = [StateRow(key, self.commit, self._blob[:20]) for key in keys[:_ROWS]]
        await self._store.write_states(self._name, self._name, 1, rows)
        await self._store.read_states(self._name, keys)

    async def move_floor(self) -> None:
        """A base, the append that names it, and the end of what is below."""
        before, part = self._parts, PartId("state", 1, self.commit)
        await self._store.write_part(self._name, part, self._blob)
        self._floor, self._parts = self.commit, (part,)
        await self.append()
        await self._store.read_parts(self._name, self._parts)
        await self._store.delete_entries(self._name, self._floor + 1)
        await self._store.delete_parts(self._name, before)

    async def drop(self) -> None:
        """Leave nothing behind."""
        await self._store.drop_journal(self._name)
        await self._store.drop_computation(self._name)
