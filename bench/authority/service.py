"""The authority as a service: reports over gRPC, journaled and broadcast, and a takeover of the shard."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import perf_counter, process_time
from typing import Final

from bench.authority.intervals import members
from bench.authority.reporter import WATERMARK
from bench.cluster.measures import percentile
from bench.report import Figure
from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shard import AuthorityShard
from millwheel.client.watermarks import WatermarkClient
from millwheel.model.keys import KeyInterval
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server
from millwheel.rpc.watermarks import WatermarkReport
from millwheel.store.memory import MemoryStore

__all__ = ["measure"]

_JOURNAL: Final = "authority.0"
_LONE: Final = "lone.1"
_BATCH: Final = 1_000
_PATIENCE: Final = 120.0
_BACKGROUND: Final = 10_000
"""Reports per second of the other intervals."""


async def measure(intervals: int, rounds: int) -> list[Figure]:
    """Update to broadcast beside so many other intervals, a round of all of them, and a takeover by another shard."""
    store = MemoryStore()
    await store.create_journal(_JOURNAL)
    owned = members(intervals)
    found: dict[str, tuple[float, str]] = {}
    async with _serving(store, 1) as (shard, address):
        for first in range(0, intervals, _BATCH):
            some = range(first, min(first + _BATCH, intervals))
            await asyncio.gather(*(shard.accept(*owned[number], number + 1) for number in some))
        took, cpu = await _round(address, intervals)
        found["round_s"] = (took, "s")
        found["served_reports_per_s"] = (intervals / took, "reports/s")
        found["served_report_us"] = (cpu / intervals * 1e6, "µs")
        # The numbers of this client's reports stay above those of the other process, because the lone ones come first.
        async with WatermarkClient(address, on_refused=print) as client:
            for name, rate in (("", 0), ("busy.", _BACKGROUND)):
                taken = await _beside(client, owned, rate, rounds)
                for part, share in (("p50", 0.5), ("p99", 0.99)):
                    found[f"broadcast.{name}{part}_ms"] = (percentile(taken, share) * 1e3, "ms")
    began = perf_counter()
    async with _serving(store, 2) as (_, address):
        found["takeover.opened_s"] = (perf_counter() - began, "s")
        async with WatermarkClient(address, on_refused=print) as client:
            await _lone(client, 1 << 30, 2)
        found["takeover.first_broadcast_s"] = (perf_counter() - began, "s")
    return [Figure(f"authority.{name}", value, unit, (value,)) for name, (value, unit) in found.items()]


@asynccontextmanager
async def _serving(store: MemoryStore, sequencer: int) -> AsyncIterator[tuple[AuthorityShard, str]]:
    """A shard that is restored from the store, and the address of its server."""
    shard = await AuthorityShard.open(store, _JOURNAL, sequencer)
    server = create_server()
    add_WatermarkServiceServicer_to_server(WatermarkServicer(shard), server)
    address = bind(server)
    await server.start()
    try:
        yield shard, address
    finally:
        await server.stop(None)
        await shard.close()


async def _beside(client: WatermarkClient, owned: list[tuple[str, KeyInterval]], rate: int, rounds: int) -> list[float]:
    """What :func:`_lone` finds while other intervals report at this rate."""
    others = asyncio.create_task(_report(client, owned, rate)) if rate else None
    try:
        return await _lone(client, 1 if others is None else 1 << 20, rounds)
    finally:
        if others is not None:
            others.cancel()
            with suppress(asyncio.CancelledError):
                await others


async def _lone(client: WatermarkClient, first: int, rounds: int) -> list[float]:
    """Seconds from a report of the only interval to the broadcast that it causes, measured at the same client."""
    await client.accept(_LONE, KeyInterval(), first)
    updates = client.watch([_LONE])
    await anext(updates)
    taken = []
    for watermark in range(first, first + rounds):
        began = perf_counter()
        client.report(WatermarkReport(_LONE, KeyInterval(), first, watermark))
        while (await anext(updates))[_LONE].watermark != watermark:
            pass
        taken.append(perf_counter() - began)
    await updates.aclose()
    return taken


async def _report(client: WatermarkClient, owned: list[tuple[str, KeyInterval]], rate: int) -> None:
    """Report at ``rate``, one interval after the other, until it is cancelled."""
    began, number = perf_counter(), 0
    while True:
        for _ in range(max(0, int((perf_counter() - began) * rate) - number)):
            place = number % len(owned)
            client.report(WatermarkReport(*owned[place], place + 1, WATERMARK + 1 + number // len(owned)))
            number += 1
        await asyncio.sleep(0.005)


async def _round(address: str, intervals: int) -> tuple[float, float]:
    """Seconds in which every interval reports once, until the broadcast, and this process's CPU seconds meanwhile."""
    reporter = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.authority.reporter", address, str(intervals), stdin=PIPE, stdout=PIPE
    )
    try:
        assert reporter.stdout is not None
        assert reporter.stdin is not None
        async with asyncio.timeout(_PATIENCE):
            if await reporter.stdout.readline() != b"ready\n":
                raise RuntimeError("the process that reports has failed; its output is above")
            before = process_time()
            reporter.stdin.write(b"go\n")
            took = float(await reporter.stdout.readline())
            return took, process_time() - before
    finally:
        with suppress(ProcessLookupError):
            reporter.kill()
        await reporter.wait()
