"""The CPU seconds that the processes of the cluster use, by kind of process."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import psutil

from bench.cluster.system import System

__all__ = ["Costs"]


class Costs:
    """Measures from its creation on. ``more``: further processes, by their kind. They may not end before the text."""

    def __init__(self, system: System, more: Mapping[str, int] | None = None) -> None:
        self._system = system
        self._more = more or {}
        self._began = time.monotonic()
        self._before = self._spent()
        self._idle = psutil.cpu_times().idle

    def cores(self) -> dict[str, float]:
        """The cores used since the creation, by kind of process, by others, and idle."""
        took = time.monotonic() - self._began
        spent = self._spent()
        idle = (psutil.cpu_times().idle - self._idle) / took
        cores: dict[str, float] = {}
        for (kind, pid), seconds in spent.items():
            cores[kind] = cores.get(kind, 0.0) + (seconds - self._before.get((kind, pid), 0.0)) / took
        others = max(0.0, (os.cpu_count() or 1) - idle - sum(cores.values()))
        return {**cores, "others": others, "idle": idle}

    def as_text(self) -> str:
        """:meth:`cores` as text."""
        return "cores: " + ", ".join(f"{kind} {used:.2f}" for kind, used in self.cores().items())

    def seconds(self) -> float:
        """The CPU seconds of all these processes together, since the creation."""
        return sum(seconds - self._before.get(process, 0.0) for process, seconds in self._spent().items())

    def _spent(self) -> Mapping[tuple[str, int], float]:
        """CPU seconds by kind and process. A process that was killed is missing, and counts as nothing."""
        components, services = self._system.components, self._system.daemons.services.processes
        kinds = {"Cassandra": components.cassandra.nodes[0].pid, "etcd": components.etcd.members[0].pid}
        kinds |= self._more
        kinds |= {name: process.pid for name, process in services.items()}
        found = {(name.partition(" ")[0], pid): _cpu(pid) for name, pid in kinds.items()}
        return {**found, ("client", os.getpid()): _cpu(os.getpid())}


def _cpu(pid: int) -> float:
    """The CPU seconds of a process. 0 if the process has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
