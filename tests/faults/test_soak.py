"""A steady load for long, with moves, splits and merges: nothing may be lost or grow (`make soak MINUTES=30`).

Samples go to build/soak.csv. The history is checked at the end.
"""

from __future__ import annotations

import asyncio
import csv
import os
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from examples.demo.showing import say
from tests.daemons.process import metrics_page
from tests.faults import history
from tests.faults.checking import check
from tests.faults.cluster import Cluster, etcd_status
from tests.faults.flatness import judge
from tests.faults.load import CUTS
from tests.faults.running import BUILD, loaded
from tests.reshaping import reshape

MINUTES = float(os.environ.get("MILLWHEEL_MINUTES", "30"))
SEED = int(os.environ.get("MILLWHEEL_SEED", "1"))
PLACE = BUILD / "soak"
SAMPLE = 5.0
"""Seconds from one sample to the next."""
CHANGE = 4.0
"""Mean seconds from one change of intervals to the next."""
_MEBI = 1 << 20


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


@pytest.mark.long
@pytest.mark.timeout(MINUTES * 60 + 600)
def test_nothing_grows_and_nothing_is_lost() -> None:
    missed: list[str] = []
    samples = uvloop.run(soak(missed))
    verdicts = [judge(name, samples.times, values) for name, values in samples.figures.items()]
    head = f"{'':6} {'':28} {'early':>10} {'late':>10} {'most':>10} {'an hour':>10}"
    print("", head, *verdicts, sep="\n")
    violations = check(history.read(PLACE / "history.jsonl"))
    assert not violations, violations[:40]
    assert not missed, missed
    assert [one.name for one in verdicts if not one.flat] == []


async def soak(missed: list[str]) -> Samples:
    how: dict[str, Any] = {"nodes": 1, "settings": "balance = false\n", "history": 60, "commitlog": 64}
    async with loaded(PLACE, missed, seed=SEED, **how) as (found, load, _):
        samples, done = Samples(found, BUILD / "soak.csv"), Counter[str]()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(samples.run(SAMPLE)), group.create_task(reshaping(found, done))]
            for minute in range(1, int(MINUTES) + 1):
                await asyncio.sleep(60)
                say(f"{minute} min: {load.sent.total():,} records sent, {load.lag_as_text()}; {dict(done)}")
            await asyncio.sleep((MINUTES % 1) * 60)
            for task in tasks:
                task.cancel()
        return samples


async def reshaping(found: Cluster, done: Counter[str]) -> None:
    workers = [f"worker-{number}.0" for number in range(1, len(found.daemons.workers) + 1)]
    chance = random.Random(SEED)
    while True:
        await asyncio.sleep(chance.uniform(0.5, 1.5) * CHANGE)
        done[await reshape(found.client, "faults", CUTS, workers, chance)] += 1
