"""Warms up Cassandra, which is several times slower in its first minute than afterwards.

In the first minute, the JVM compiles. A transaction of 300 bytes took 2.6 ms of CPU in the first 6,000 of them. It took
1.3 ms in the fourth 6,000, and 0.75 ms afterwards. After 40,000 transactions, the compiler still used half a core for
another 25 seconds. So the work continues until the compiler is idle. No amount of work is fixed.
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
from millwheel.model.incarnation import IncarnationId
from millwheel.store.cassandra import CassandraSettings, CassandraStore
from millwheel.store.contract import Append, PartId, StateRow

__all__ = ["compiling", "warm"]

_SIZES: Final = (200, 200, 2_000, 20_000)
"""Bytes of an entry, for each journal. There are few journals, so that the compiler gets half of a two-core machine."""
_ROWS: Final = 200
"""The number of state rows in one write. A write follows some appends."""
_APPENDS: Final = 20
_ENOUGH: Final = 20_000
"""The minimum number of appends."""
_WINDOW: Final = 5.0
_RESTING: Final = 0.1
"""The share of a core in a window of ``_WINDOW`` seconds. Below it, the compiler counts as idle."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def compiling(process: int) -> float:
    """CPU seconds that the JVM's compiler has used."""
    seconds = 0.0
    for thread in Path(f"/proc/{process}/task").iterdir():
        try:
            content = (thread / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since it was listed: threads come and go
        name, _, numbers = content.partition("(")[2].rpartition(")")
        if "CompilerThre" in name:
            user, system = numbers.split()[11:13]
            seconds += (int(user) + int(system)) / _TICKS
    return seconds


async def warm(settings: CassandraSettings, compiled: Callable[[], float], longest: float) -> tuple[float, float]:
    """Work until the compiler is idle, but at most ``longest`` seconds.

    ``compiled`` returns the CPU seconds that the compiler has used so far. Returns the median time of a small append in
    the first and in the last seconds, in milliseconds.
    """
    store = await CassandraStore.open(settings)
    try:
        return await _Warming(store).until_it_rests(compiled, longest)
    finally:
        await store.close()


class _Warming:
    """Work for a store: entries of several sizes, and state rows, as intervals write them."""

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
        """Commit repeatedly. After some commits, write and read rows, and truncate the journal."""
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
    """The store operations of an interval, without the interval."""

    def __init__(self, store: CassandraStore, name: str, blob: bytes) -> None:
        self.commit = 0
        self._store = store
        self._name = name
        self._blob = blob
        self._truncation_point = 0
        self._parts: tuple[PartId, ...] = ()

    async def open(self) -> None:
        """Create and fence the journal."""
        await self._store.create_journal(self._name)
        await self._store.fence(self._name, 1)

    async def append(self) -> None:
        """Append one commit."""
        self.commit += 1
        await self._store.append(self._name, Append(1, self.commit, self._truncation_point, self._parts, self._blob))

    async def write_and_read_rows(self) -> None:
        """Write state rows as a flush does, and read rows as cache misses do.

        Half of the rows that are read do not exist.
        """
        keys = [b"k%07d" % number for number in range(2 * _ROWS)]
        rows = [StateRow(key, self.commit, self._blob[:20]) for key in keys[:_ROWS]]
        await self._store.write_states(IncarnationId(self._name), self._name, 1, rows)
        await self._store.read_states(IncarnationId(self._name), keys)

    async def move_floor(self) -> None:
        """Write a base part and the append that names it. Then delete the entries below."""
        before, part = self._parts, PartId("state", 1, self.commit)
        await self._store.write_part(self._name, part, self._blob)
        self._truncation_point, self._parts = self.commit, (part,)
        await self.append()
        await self._store.read_parts(self._name, self._parts)
        await self._store.delete_entries(self._name, self._truncation_point + 1)
        await self._store.delete_parts(self._name, before)

    async def drop(self) -> None:
        """Delete everything that was written."""
        await self._store.drop_journal(self._name)
        await self._store.drop_incarnation(IncarnationId(self._name))
