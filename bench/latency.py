"""(b) Latency of a committed result: two stages with different keys, from the send to the subscriber's receipt."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time

import uvloop

from bench.report import Figure
from bench.server import server, submit
from bench.topologies import Ping, stages
from millwheel.client.injector.injector import Injector
from millwheel.client.subscription import Subscription
from millwheel.model.time import Timestamp

__all__ = ["measure", "pings"]

_USERS = 1_000
_WARM_SECONDS = 2
_GRACE_SECONDS = 3.0


def measure(rate: int, seconds: int, runs: int) -> list[Figure]:
    """p50, p95 and p99 in milliseconds at ``rate`` records/s. Each is the best of ``runs`` runs."""
    found = [_run(rate, seconds) for _ in range(runs)]
    return [
        Figure(f"latency.{rate}.{name}_ms", min(run[i] for run in found), "ms", tuple(run[i] for run in found))
        for i, name in enumerate(("p50", "p95", "p99"))
    ]


def _run(rate: int, seconds: int) -> tuple[float, float, float]:
    with server() as address:
        submit(address, "stages")
        command = [sys.executable, "-m", "bench.latency", address, str(rate), str(seconds)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=seconds + 60)
    p50, p95, p99 = (float(word) for word in answer.stdout.split())
    return p50, p95, p99


async def pings(address: str, rate: int, seconds: int) -> list[float]:
    """Send at ``rate`` for ``seconds`` after a warm-up, and receive. Return all latencies, sorted, in milliseconds."""
    latencies: list[float] = []
    receiver = asyncio.create_task(_receive(address, latencies, rate * (seconds + _WARM_SECONDS)))
    async with Injector("pings", address=address, process="bench", topology=stages) as injector:
        await _send(injector, rate, seconds + _WARM_SECONDS)
        await injector.flush()
    await asyncio.wait_for(receiver, _GRACE_SECONDS + seconds)
    return sorted(latencies[rate * _WARM_SECONDS :])


async def _send(injector: Injector, rate: int, seconds: int) -> None:
    draw = random.Random(1)
    began = time.perf_counter()
    for number in range(rate * seconds):
        delay = began + number / rate - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        ping = Ping(f"u{draw.randrange(_USERS)}", f"p{draw.randrange(_USERS)}", time.perf_counter_ns())
        await injector.send(ping, timestamp=Timestamp(time.time_ns() // 1_000))


async def _receive(address: str, latencies: list[float], expected: int) -> None:
    async with Subscription(
        "by-page", cursor="bench", record_type=Ping, address=address, auto_ack=True
    ) as subscription:
        async for batch in subscription:
            now = time.perf_counter_ns()
            latencies.extend((now - value.sent) / 1e6 for value in batch.values)
            if len(latencies) >= expected:
                return


if __name__ == "__main__":
    measured = uvloop.run(pings(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
    print(*(f"{measured[int(len(measured) * share)]:.3f}" for share in (0.50, 0.95, 0.99)), flush=True)
