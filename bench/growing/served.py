"""State that grows on a server: what one more element costs, and a key of a gigabyte before and after a crash."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from statistics import median
from typing import Final, Protocol

import psutil

from bench.growing.program import KINDS, Work, growing
from millwheel.client.injector import Injector, InjectorSettings
from millwheel.model.time import Timestamp

__all__ = ["REST", "Cost", "Large", "Served", "large", "single_elements"]

_AT: Final = Timestamp(1_700_000_000_000_000)
_FILLING: Final = 1_000
"""Elements in a record that fills."""
_AHEAD: Final = 20
"""Records that are sent before their ACKs are awaited. Each brings up to a megabyte of elements."""
_ELEMENT: Final = 500
"""Bytes of an element of the large key."""
REST: Final = 20.0
"""Seconds after which a server has written what is left of a load or of a crash."""
_APPENDED: Final = 200
"""Elements that are appended to the large key one by one."""
_PATIENCE: Final = InjectorSettings(patience=300.0)


class Served(Protocol):
    """A running worker, and the server or cluster that it belongs to."""

    @property
    def address(self) -> str:
        """Where clients connect."""

    @property
    def worker(self) -> int:
        """The worker's process id."""

    async def restart(self) -> None:
        """SIGKILL the worker, and start it again. Return when its process runs."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one more element of a collection costs."""

    kind: str
    elements: int
    milliseconds: float
    """From the send to the ACK, at the median."""
    cpu: float
    """Milliseconds of the worker's process."""
    memory: float
    """MB that the worker's process has."""


async def single_elements(
    served: Served, kind: str, sizes: list[int], measured: int, rest: float = REST / 5
) -> AsyncIterator[Cost]:
    """Fill a collection of a key of its own to each size, and add ``measured`` single elements."""
    async with _injector(served, kind) as injector:
        for size in sizes:
            key = f"{size} elements"
            for first in range(0, size, _FILLING):
                await _send(injector, Work(key, "fill", first, min(_FILLING, size - first)))
                if first // _FILLING % _AHEAD == 0:
                    await injector.flush()
            await injector.flush()
            await asyncio.sleep(rest)
            before, took = _cpu(served), []
            for number in range(size, size + measured):
                began = time.perf_counter()
                await _send(injector, Work(key, "one", number))
                await injector.flush()
                took.append(time.perf_counter() - began)
            cpu = (_cpu(served) - before) / measured
            yield Cost(kind, size, median(took) * 1e3, cpu * 1e3, _memory(served))


@dataclass(slots=True)
class Large:
    """A key of many megabytes: the time it took to make, and what the worker had and did before and after a crash."""

    elements: int
    seconds: float
    before: float
    """MB of the worker's process without the key."""
    most: float
    """The most MB meanwhile."""
    started: float = 0
    """Seconds from the kill until the worker runs again."""
    serving: float = 0
    """Seconds from the kill until a record of the key was ACKed."""
    after: float = 0
    """MB of the worker's process then."""
    appends: tuple[Cost, ...] = ()
    """One more element then, and after some seconds."""
    reads: tuple[tuple[float, ...], ...] = ()
    """Milliseconds of records that read one element anywhere, until their ACKs: then, and after some seconds."""


async def large(served: Served, megabytes: int, say: Callable[[str], None], rest: float = REST) -> Large:
    """Make a key of so many megabytes, kill the worker, and use the key again."""
    count, key = megabytes * 1_000_000 // _ELEMENT, "large"
    async with _injector(served, "list") as injector:
        async with _watching(served) as most:
            before, began = _memory(served), time.perf_counter()
            for number, first in enumerate(range(0, count, _FILLING)):
                await _send(injector, Work(key, "fill", first, min(_FILLING, count - first), _ELEMENT))
                if number % _AHEAD == 0:
                    await injector.flush()
                if number % 200 == 199:
                    say(f"{first * _ELEMENT / 1e6:,.0f} MB, the worker has {_memory(served):,.0f} MB")
            await injector.flush()
            found = Large(count, time.perf_counter() - began, before, 0)
            await asyncio.sleep(rest)
        found.most = most[0]
        began = time.perf_counter()
        await served.restart()
        found.started = time.perf_counter() - began
        await _flushed(injector, Work(key, "one", count, 1, _ELEMENT))
        found.serving, found.after = time.perf_counter() - began, _memory(served)
        for first in (0, 1):
            await asyncio.sleep(rest * first)
            reads = [await _timed(_read(injector, key, count * (2 * share + first) // 15)) for share in range(7)]
            found.reads += (tuple(reads),)
            found.appends += (await _appended(served, injector, key, count),)
    return found


def _injector(served: Served, kind: str) -> Injector:
    assert kind in KINDS
    return Injector(f"to-{kind}", process="bench", address=served.address, topology=growing, settings=_PATIENCE)


async def _send(injector: Injector, work: Work) -> None:
    await injector.send(work, timestamp=_AT)


async def _flushed(injector: Injector, work: Work) -> None:
    await _send(injector, work)
    await injector.flush()


async def _read(injector: Injector, key: str, number: int) -> None:
    await _flushed(injector, Work(key, "read", number))


async def _appended(served: Served, injector: Injector, key: str, count: int) -> Cost:
    before, took = _cpu(served), []
    for number in range(_APPENDED):
        took.append(await _timed(_flushed(injector, Work(key, "one", count + number, 1, _ELEMENT))))
    cpu = (_cpu(served) - before) / _APPENDED
    return Cost("list", count, median(took), cpu * 1e3, _memory(served))


async def _timed(work: Awaitable[None]) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1e3


@asynccontextmanager
async def _watching(served: Served) -> AsyncIterator[list[float]]:
    """The most memory of the worker in the block, as the only item of a list."""
    most = [0.0]

    async def watch() -> None:
        while True:
            most[0] = max(most[0], _memory(served))
            await asyncio.sleep(0.2)

    watching = asyncio.create_task(watch())
    try:
        yield most
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def _cpu(served: Served) -> float:
    times = psutil.Process(served.worker).cpu_times()
    return float(times.user + times.system)


def _memory(served: Served) -> float:
    return float(psutil.Process(served.worker).memory_info().rss) / 1e6
