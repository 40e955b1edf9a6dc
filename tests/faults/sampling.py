"""What the processes of a cluster take up: memory, descriptors, threads, tasks; and how large their data are."""

from __future__ import annotations

import asyncio
import csv
import time
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.faults.cluster import Cluster, etcd_status

__all__ = ["Samples"]

_MEBI: Final = 1 << 20


class Samples:
    """Taken now and then, and written to a CSV as they come."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self.times: list[float] = []
        """Seconds from the first one on."""
        self.figures: dict[str, list[float]] = {}
        """A column for each figure; what could not be had is what it was before."""
        self._cluster = cluster
        self._path = path
        self._began = time.monotonic()

    async def run(self, every: float) -> None:
        """Take one every so many seconds, for ever."""
        self._began = time.monotonic()
        while True:
            await self.take()
            await asyncio.sleep(every)

    async def take(self) -> None:
        """One of each figure."""
        row = await asyncio.to_thread(self._row)
        if not self.figures:
            self.figures = {name: [] for name in row}
            self._write(["seconds", *row])
        self.times.append(time.monotonic() - self._began)
        for name, values in self.figures.items():
            values.append(row.get(name, values[-1] if values else 0.0))
        self._write([f"{self.times[-1]:.1f}", *(f"{values[-1]:.2f}" for values in self.figures.values())])

    def _write(self, row: list[str]) -> None:
        with self._path.open("a" if self.times else "w", newline="") as file:
            csv.writer(file).writerow(row)

    def _row(self) -> dict[str, float]:
        row: dict[str, float] = {}
        for name, pid in self._cluster.pids().items():
            try:
                process = psutil.Process(pid)
                row[f"{name} memory_mb"] = process.memory_info().rss / _MEBI
                row[f"{name} descriptors"] = process.num_fds()
                row[f"{name} threads"] = process.num_threads()
            except psutil.NoSuchProcess:
                continue
        for name, address in self._cluster.daemons.metrics.items():
            tasks = _tasks(address)
            if tasks is not None:
                row[f"{name} tasks"] = tasks
        for number, endpoint in enumerate(self._cluster.etcd.endpoints, 1):
            with suppress(OSError, ValueError, KeyError):
                row[f"etcd {number} db_mb"] = int(etcd_status(endpoint)["dbSize"]) / _MEBI
        for number, node in enumerate(self._cluster.cassandra.nodes, 1):
            row[f"cassandra {number} data_mb"] = _size(node.config.folder) / _MEBI
        return row


def _tasks(address: str) -> float | None:
    try:
        with urlopen(f"http://{address}/metrics", timeout=5) as response:
            text = response.read().decode()
    except (URLError, OSError):
        return None
    families = {one.name: one for one in text_string_to_metric_families(text)}
    return float(families["millwheel_tasks"].samples[0].value)


def _size(folder: Path) -> int:
    """Bytes on disk of all files below; those that go meanwhile count for nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except OSError:
            continue
    return total
