"""`make soak`: a steady load for long, with moves, splits and merges. Nothing may be lost or grow.

Samples go to build/soak.csv. The history is checked at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
from prometheus_client.parser import text_string_to_metric_families

from examples.demo.showing import say
from tests.daemons.process import metrics_page
from tests.faults import history
from tests.faults.checking import check
from tests.faults.cluster import Cluster, etcd_status
from tests.faults.flatness import judge
from tests.faults.load import CUTS, Load
from tests.faults.running import BUILD, complain, loaded, parser, run_to_end
from tests.reshaping import reshape

_MEBI: Final = 1 << 20


@dataclass
class Samples:
    """Samples that are taken periodically, and written to a CSV at once."""

    cluster: Cluster
    path: Path
    times: list[float] = field(default_factory=list)
    """Seconds from the first one on."""
    figures: dict[str, list[float]] = field(default_factory=dict)
    """A column for each figure. A figure that cannot be read keeps its last value."""

    async def run(self, every: float) -> None:
        """Take a sample at every interval, without end."""
        began = time.monotonic()
        while True:
            row = await asyncio.to_thread(self._row)
            if not self.figures:
                self.figures = {name: [] for name in row}
                self._write(["seconds", *row])
            self.times.append(time.monotonic() - began)
            for name, values in self.figures.items():
                values.append(row.get(name, values[-1] if values else 0.0))
            self._write([f"{self.times[-1]:.1f}", *(f"{values[-1]:.2f}" for values in self.figures.values())])
            await asyncio.sleep(every)

    def _write(self, row: list[str]) -> None:
        with self.path.open("a" if self.times else "w", newline="") as file:
            csv.writer(file).writerow(row)

    def _row(self) -> dict[str, float]:
        row: dict[str, float] = {}
        for name, pid in self.cluster.pids().items():
            try:
                process = psutil.Process(pid)
                row[f"{name} memory_mb"] = process.memory_info().rss / _MEBI
                row[f"{name} descriptors"] = process.num_fds()
                row[f"{name} threads"] = process.num_threads()
            except psutil.NoSuchProcess:
                continue
        for name, address in self.cluster.daemons.metrics.items():
            tasks = _tasks(address)
            if tasks is not None:
                row[f"{name} tasks"] = tasks
        for number, endpoint in enumerate(self.cluster.etcd.endpoints, 1):
            with suppress(OSError, ValueError, KeyError):
                row[f"etcd {number} db_mb"] = int(etcd_status(endpoint)["dbSize"]) / _MEBI
        for number, node in enumerate(self.cluster.cassandra.nodes, 1):
            row[f"cassandra {number} data_mb"] = _size(node.config.folder) / _MEBI
        return row


def _tasks(address: str) -> float | None:
    try:
        families = {one.name: one for one in text_string_to_metric_families(metrics_page(address))}
    except OSError:
        return None
    return float(families["millwheel_tasks"].samples[0].value)


def _size(folder: Path) -> int:
    """Bytes on disk of all files below. Files that vanish meanwhile are ignored."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total


_SAMPLE: Final = 5.0
_CHANGE: Final = 4.0
"""Mean seconds from one change of intervals to the next."""


def main() -> int:
    """The command; 0 if everything stayed flat, and nothing was lost, repeated or early."""
    arguments = parser("tests.faults.soak", __doc__, nodes=1)
    arguments.add_argument("--minutes", type=float, default=30.0)
    return run_to_end(_run(arguments.parse_args()), BUILD / "soak")


async def _run(options: argparse.Namespace) -> int:
    place, missed = BUILD / "soak", list[str]()
    how = {"settings": "balance = false\n", "history": 60, "commitlog": 64}
    async with loaded(place, options, missed, **how) as (found, load, _):
        samples = Samples(found, BUILD / "soak.csv")
        await _soak(found, samples, load, options)
    verdicts = [judge(name, samples.times, values) for name, values in samples.figures.items()]
    head = f"{'':6} {'':28} {'early':>10} {'late':>10} {'most':>10} {'an hour':>10}"
    lines, grows = [head, *map(str, verdicts)], sum(not one.flat for one in verdicts)
    print("\n".join(lines))
    violations = check(history.read(place / "history.jsonl"))
    complain(violations, missed, lambda one: f"at {one.at}")
    ran = f"{options.minutes:g} minutes, {load.sent.total():,} records"
    print(f"{ran}: {len(violations)} violations, {grows} of {len(samples.figures)} figures grow")
    say(f"written to {BUILD / 'soak.csv'}")
    return 1 if violations or grows or missed else 0


async def _soak(found: Cluster, samples: Samples, load: Load, options: argparse.Namespace) -> None:
    reached: Counter[str] = Counter()
    workers = [f"worker-{number}.0" for number in range(1, len(found.daemons.workers) + 1)]
    chance = random.Random(options.seed)

    async def reshaping() -> None:
        while True:
            await asyncio.sleep(chance.uniform(0.5, 1.5) * _CHANGE)
            reached[await reshape(found.client, "faults", CUTS, workers, chance)] += 1

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(samples.run(_SAMPLE)), group.create_task(reshaping())]
        for minute in range(1, int(options.minutes) + 1):
            await asyncio.sleep(60)
            say(f"{minute} min: {load.sent.total():,} records sent, {load.lag_as_text()}; {dict(reached)}")
        await asyncio.sleep((options.minutes % 1) * 60)
        for task in tasks:
            task.cancel()


if __name__ == "__main__":
    sys.exit(main())
