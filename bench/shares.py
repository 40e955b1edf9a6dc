"""`python -m bench.shares`: what topologies on one worker leave each other.

A flood of work comes for the topology ``flood``, which has four computations in a row. It measures

- the hook time of ``flood`` and of ``steady``, which has one computation, while both have more work than time;
- the latency of ``stages``, at 50 records/s, alone and beside the flood.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop
from prometheus_client.parser import text_string_to_metric_families

import millwheel as mw
from bench.server import server, submit
from bench.topologies import Item, flood, steady
from millwheel.client.injector.injector import Injector

__all__ = ["main"]

_BATCH = 200
_WARM_SECONDS = 3
_LATENCY_RATE = 50


def _key(number: int) -> str:
    """A key. All keys together are spread over the key space, as the intervals of a new computation are."""
    return f"{chr(33 + number % 94)}{number}"


async def _feed(address: str, name: str, seconds: float) -> None:
    """Send as much as the server takes, for some seconds."""
    program = {"flood": flood, "steady": steady}[name]
    end = time.monotonic() + seconds
    sent = 0
    async with Injector(f"{name}-0", address=address, process="bench", topology=program) as injector:
        while time.monotonic() < end:
            now = mw.Timestamp(time.time_ns() // 1_000)
            values = [Item(_key((sent + number) % 1_000)) for number in range(_BATCH)]
            await injector.send_many(values, [now] * _BATCH, positions=range(sent, sent + _BATCH))
            sent += _BATCH


@contextmanager
def _feeding(address: str, *names: str, seconds: float) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.shares", "--feed", address, str(seconds)]
    feeders = [subprocess.Popen([*command, name]) for name in names]
    try:
        time.sleep(_WARM_SECONDS)
        yield
    finally:
        for feeder in feeders:
            feeder.kill()
            feeder.wait()


def _hook_seconds(metrics: str) -> dict[str, float]:
    """By topology: the seconds that its hooks have taken."""
    with urllib.request.urlopen(metrics, timeout=10) as page:
        families = text_string_to_metric_families(page.read().decode())
    found: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            if sample.name == "millwheel_hook_call_seconds_sum":
                topology = sample.labels["topology"]
                found[topology] = found.get(topology, 0.0) + sample.value
    return found


def _latency(address: str, seconds: int) -> str:
    command = [sys.executable, "-m", "bench.latency", address, str(_LATENCY_RATE), str(seconds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=seconds + 120)
    return "/".join(f"{float(word):.1f}" for word in done.stdout.split())


def _measure(seconds: int, metrics_port: int, intervals: int) -> None:
    metrics = f"http://127.0.0.1:{metrics_port}/metrics"
    with server("--metrics-port", str(metrics_port), "--intervals", str(intervals)) as address:
        for name in ("flood", "steady"):
            submit(address, name)
        submit(address, "stages")
        print(f"stages alone: p50/p95/p99 {_latency(address, seconds)} ms", flush=True)
        with _feeding(address, "flood", seconds=4 * seconds + 120):
            print(f"stages beside the flood: p50/p95/p99 {_latency(address, seconds)} ms", flush=True)
        with _feeding(address, "flood", "steady", seconds=2 * seconds + 60):
            while not _hook_seconds(metrics).get("steady"):
                time.sleep(0.5)
            before = _hook_seconds(metrics)
            time.sleep(seconds)
            used = {name: one - before.get(name, 0.0) for name, one in _hook_seconds(metrics).items()}
        text = ", ".join(f"{name} {used.get(name, 0.0):.1f} s" for name in ("flood", "steady"))
        print(f"hook time while both have too much work, of {seconds} s: {text}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.shares", description=main.__doc__)
    parser.add_argument("--seconds", type=int, default=10, help="length of each measurement")
    parser.add_argument("--intervals", type=int, default=1, help="key intervals of each computation")
    parser.add_argument("--metrics-port", type=int, default=19_433)
    parser.add_argument("--feed", nargs=3, metavar=("ADDRESS", "SECONDS", "TOPOLOGY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.feed:
        address, seconds, name = arguments.feed
        uvloop.run(_feed(address, name, float(seconds)))
    else:
        _measure(arguments.seconds, arguments.metrics_port, arguments.intervals)


if __name__ == "__main__":
    main()
