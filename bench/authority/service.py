"""The authority as a service: reports over gRPC, journaled and broadcast, and a takeover of the shard."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import perf_counter, process_time
from typing import Final

from prometheus_client import CollectorRegistry

from bench.authority.intervals import members
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
_ROUNDS: Final = 3
"""The first round opens the connection, and grows what is in memory."""
_LOADS: Final = {"": 0, "busy.": 10_000, "full.": 100_000}
"""The other intervals' reports a second, by the prefix of the figures."""
_SHARES: Final = {"p50": 0.5, "p99": 0.99}


async def measure(intervals: int, rounds: int) -> list[Figure]:
    """Update to broadcast beside so many other intervals, rounds of all of them, and a takeover by another shard."""
    store = MemoryStore()
    await store.create_journal(_JOURNAL)
    owned = members(intervals)
    found: dict[str, tuple[float, str]] = {}
    registry = CollectorRegistry()
    async with _serving(store, 1, registry) as (shard, address):
        for first in range(0, intervals, _BATCH):
            some = enumerate(owned[first : first + _BATCH], start=first + 1)
            await asyncio.gather(*(shard.accept(*member, sequencer) for sequencer, member in some))
        async with _reporting(address, intervals) as reporter:
            turns = [await _round(reporter) for _ in range(_ROUNDS)]
            took, cpu = min(turns)
            found["round_s"] = (took, "s")
            found["served_reports_per_s"] = (intervals / took, "reports/s")
            found["served_report_us"] = (cpu / intervals * 1e6, "µs")
            async with WatermarkClient(address, on_refused=print) as client:
                for number, (name, rate) in enumerate(_LOADS.items()):
                    before = _reports(registry)
                    taken, seconds = await _beside(client, reporter, rate, (number + 1) << 20, rounds)
                    for part, share in _SHARES.items():
                        found[f"broadcast.{name}{part}_ms"] = (percentile(taken, share) * 1e3, "ms")
                    if rate:
                        came = _reports(registry) - before - rounds
                        found[f"broadcast.{name}beside_per_s"] = (came / seconds, "reports/s")
    began = perf_counter()
    async with _serving(store, 2) as (_, address):
        found["takeover.opened_s"] = (perf_counter() - began, "s")
        async with WatermarkClient(address, on_refused=print) as client:
            await _lone(client, 1 << 30, 2)
        found["takeover.first_broadcast_s"] = (perf_counter() - began, "s")
    runs = {"round_s": tuple(took for took, _ in turns)}
    return [Figure(f"authority.{name}", value, unit, runs.get(name, (value,))) for name, (value, unit) in found.items()]


@asynccontextmanager
async def _serving(
    store: MemoryStore, sequencer: int, registry: CollectorRegistry | None = None
) -> AsyncIterator[tuple[AuthorityShard, str]]:
    """A shard that is restored from the store, and the address of its server."""
    shard = await AuthorityShard.open(store, _JOURNAL, sequencer, registry=registry)
    server = create_server()
    add_WatermarkServiceServicer_to_server(WatermarkServicer(shard), server)
    address = bind(server)
    await server.start()
    try:
        yield shard, address
    finally:
        await server.stop(None)
        await shard.close()


async def _beside(
    client: WatermarkClient, reporter: Process, rate: int, first: int, rounds: int
) -> tuple[list[float], float]:
    """What :func:`_lone` finds while other intervals report at a rate, and the seconds that it took."""
    await _say(reporter, f"rate {rate}")
    began = perf_counter()
    taken = await _lone(client, first, rounds)
    seconds = perf_counter() - began
    await _say(reporter, "rate 0")
    return taken, seconds


def _reports(registry: CollectorRegistry) -> float:
    """How many reports the shard has got."""
    return registry.get_sample_value("millwheel_authority_reports_total") or 0.0


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


@asynccontextmanager
async def _reporting(address: str, intervals: int) -> AsyncIterator[Process]:
    """The process of :mod:`bench.authority.reporter`, when it is ready."""
    reporter = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.authority.reporter", address, str(intervals), stdin=PIPE, stdout=PIPE
    )
    try:
        await _answer(reporter)
        yield reporter
    finally:
        with suppress(ProcessLookupError):
            reporter.kill()
        await reporter.wait()


async def _say(reporter: Process, line: str) -> None:
    assert reporter.stdin is not None
    reporter.stdin.write(f"{line}\n".encode())
    await reporter.stdin.drain()


async def _answer(reporter: Process) -> str:
    assert reporter.stdout is not None
    async with asyncio.timeout(_PATIENCE):
        if not (line := await reporter.stdout.readline()):
            raise RuntimeError("the process that reports has failed; its output is above")
    return line.decode().strip()


async def _round(reporter: Process) -> tuple[float, float]:
    """Seconds in which every interval reports once, until the broadcast, and this process's CPU seconds meanwhile."""
    before = process_time()
    await _say(reporter, "round")
    took = float(await _answer(reporter))
    return took, process_time() - before
