"""Latency of committed results with and without a snapshot: `python -m bench.snapshots MIB [RATE [SECONDS]]`.

One computation has MIB of states. Records come at RATE, and each result is received. First nothing else happens. Then
snapshots are taken one after the other. Then nothing else happens again: the store may still be busy with the states at
first. PLACE in the environment is a directory for the snapshots.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import uvloop

import millwheel as mw
from bench.server import server, submit
from bench.topologies import Put, kept
from millwheel.client.control import ControlClient
from millwheel.client.injector.injector import Injector
from millwheel.client.subscription import Subscription

_STATE_BYTES = 10_000
_BATCH = 100
_WARM_SECONDS = 2.0


async def _fill(injector: Injector, states: int) -> None:
    for first in range(0, states, _BATCH):
        puts = [Put(f"k{number}", _STATE_BYTES, 0) for number in range(first, min(first + _BATCH, states))]
        await injector.send_many(puts, [1] * len(puts))
    await injector.flush()


async def _send(injector: Injector, rate: int, seconds: float, states: int) -> None:
    """Send at ``rate``. Every tenth record replaces a state, the others ask for a result."""
    draw, began = random.Random(1), time.perf_counter()
    for number in range(int(rate * seconds)):
        delay = began + number / rate - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        size = 0 if number % 10 else _STATE_BYTES
        await injector.send(Put(f"k{draw.randrange(states)}", size, time.perf_counter_ns()), timestamp=mw.Timestamp(2))
    await injector.flush()


async def _receive(address: str, latencies: list[float]) -> None:
    async with Subscription("kept", record_type=Put, address=address) as subscription:
        async for batch in subscription:
            now = time.perf_counter_ns()
            latencies.extend((now - value.sent) / 1e6 for value in batch.values)


async def _snapshots(address: str, place: str, stalls: list[float]) -> None:
    async with ControlClient(address, deadline=600) as client:
        while True:
            began = time.perf_counter()
            taken = await client.create_snapshot("kept", place, f"s{len(stalls)}", full=True)
            stalls.append(taken.stall_us / 1e3)
            took, attempts = time.perf_counter() - began, taken.attempts
            size = sum(file.size_bytes for rows in taken.manifest.rows for file in rows.files)
            print(f"snapshot: {took:.2f} s, {size / 2**20:.0f} MiB of rows, {attempts} attempts", flush=True)


def _line(what: str, latencies: list[float]) -> str:
    ordered = sorted(latencies)
    p50, p95, p99, p999 = (ordered[int(len(ordered) * share)] for share in (0.50, 0.95, 0.99, 0.999))
    return (
        f"{what}: p50 {p50:.1f} ms, p95 {p95:.1f} ms, p99 {p99:.1f} ms, p99.9 {p999:.1f} ms, most {ordered[-1]:.1f} ms"
    )


async def _measure(address: str, mebibytes: int, rate: int, seconds: float) -> None:
    states = max(mebibytes * 2**20 // _STATE_BYTES, 1)
    latencies: list[float] = []
    receiving = asyncio.create_task(_receive(address, latencies))
    async with Injector("puts", address=address, process="bench", topology=kept) as injector:
        await _fill(injector, states)
        await _send(injector, rate, _WARM_SECONDS, states)
        latencies.clear()
        await _send(injector, rate, seconds, states)
        print(_line("without", latencies), flush=True)
        latencies.clear()
        stalls: list[float] = []
        with tempfile.TemporaryDirectory(prefix="millwheel-bench-", dir=os.environ.get("PLACE")) as place:
            taking = asyncio.create_task(_snapshots(address, str(Path(place)), stalls))
            await _send(injector, rate, seconds, states)
            print(_line("with", latencies), flush=True)
            taking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await taking  # raises what a snapshot failed with
        latencies.clear()
        await _send(injector, rate, seconds, states)
        print(_line("without again", latencies), flush=True)
        print(f"stalls: {', '.join(f'{one:.1f}' for one in stalls)} ms", flush=True)
        await injector.finish()
    receiving.cancel()


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    with server() as running:
        submit(running, "kept")
        uvloop.run(_measure(running, numbers[0], *(numbers[1:] or [200]), *([] if len(numbers) > 2 else [20.0])))
