"""The faults of the cluster. Each one names the processes that it hits, and ends with a repair where that is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from millwheel.config import WorkerSection
from tests.faults.cluster import Cluster

_PAST_LEASE: Final = 2 * WorkerSection().lease_seconds + 2
"""In seconds: more than twice a worker's lease."""
_AHEAD: Final = 20.0
"""Seconds that a clock is stepped. It is more than the ten seconds by which clocks may differ."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that lasts ``lasts`` seconds. ``clock``: clocks are wrong during that time."""

    name: str
    lasts: float
    accident: Callable[[Cluster], AsyncIterator[str]]
    """A generator: it begins the fault, yields the names of what it hits, and then repairs the damage."""
    clock: bool = False

    def befall(self, cluster: Cluster) -> AbstractAsyncContextManager[str]:
        """A block during which the fault lasts."""
        return asynccontextmanager(self.accident)(cluster)


async def _struck(role: str, how: str, cluster: Cluster) -> AsyncIterator[str]:
    """Kill or pause a process.

    Killed by SIGKILL: the service manager starts a daemon again. Other processes start again at the fault's end.
    Paused by SIGSTOP until the fault's end: the process continues although others have replaced it meanwhile.
    """
    one = await cluster.victim(role)
    (one.kill if how == "killed" else one.pause)()
    try:
        yield one.name
    finally:
        await asyncio.to_thread(one.start if how == "killed" else one.resume)


async def _disk_full(cluster: Cluster) -> AsyncIterator[str]:
    """Keep the disk of a Cassandra node full until the fault's end. Then start the node again."""
    if cluster.disk is None:
        yield "nobody: a small file system cannot be mounted here"
        return
    node, filler = await cluster.victim("cassandra"), cluster.disk / "filler"
    filling = asyncio.create_task(kept_full(filler))
    try:
        yield node.name
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
        node.kill()
        filler.unlink()
        await asyncio.to_thread(node.start)


async def kept_full(filler: Path) -> None:
    """Fill the disk, and fill the space that becomes free later."""
    with filler.open("wb", buffering=0) as file:
        while True:
            for size in (1 << 22, 1 << 12, 1):
                with suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass
            await asyncio.sleep(0.05)


async def _parted(others: str, delay: float | None, cluster: Cluster) -> AsyncIterator[str]:
    """Slow a worker's links to ``others`` by ``delay`` seconds. None: cut them.

    AssertionError if the worker had no such connection, or not one to every node of the store: a worker needs only one
    node. Masters are an exception: they connect to workers only now and then.
    """
    worker = (await cluster.victim("worker")).name
    parted = cluster.links.cut(worker, others) if delay is None else cluster.links.slow(worker, others, delay)
    try:
        nodes = {f"cassandra {number}" for number, _ in enumerate(cluster.cassandra.nodes, 1)}
        whole = parted == nodes if others == "cassandra *" else bool(parted) or others == "master *"
        assert whole, f"of {others}, {worker} is connected to {sorted(parted)} alone"
        by = "" if delay is None else f", by {delay * 1e3:.0f} ms"
        yield f"{worker}, {', '.join(sorted(parted))}{by}"
    finally:
        cluster.links.mend()


async def _stepped(role: str, seconds: float, cluster: Cluster) -> AsyncIterator[str]:
    name = (await cluster.victim(role)).name
    address = cluster.daemons.addresses[name]
    cluster.clocks.step(address, seconds)
    try:
        yield f"{name}, by {seconds:+.0f} s"
    finally:
        cluster.clocks.step(address, 0)


_TIMES: Final = {
    "worker": (2, _PAST_LEASE),
    "leading master": (2, 8),
    "standby master": (2, 8),
    "authority": (2, 8),
    "etcd": (5, 8),
    "cassandra": (5, _PAST_LEASE),
}
"""By role: the seconds that it is killed, and those that it is paused."""

FAULTS: Final = (
    *(
        Fault(f"{'-'.join(reversed(role.split()))}-{how}", lasts, partial(_struck, role, how))
        for role, times in _TIMES.items()
        for how, lasts in zip(("killed", "paused"), times, strict=True)
    ),
    Fault("cassandra-disk-full", 10, _disk_full),
    *(
        Fault(f"cut-worker-{role}", _PAST_LEASE, partial(_parted, f"{role} *", None))
        for role in ("cassandra", "etcd", "worker", "authority", "master")
    ),
    *(
        Fault(f"slow-worker-{role}", 8, partial(_parted, f"{role} *", 0.1))
        for role in ("cassandra", "etcd", "worker", "authority")
    ),
    Fault("clock-worker-ahead", 8, partial(_stepped, "worker", _AHEAD), clock=True),
    Fault("clock-worker-behind", 8, partial(_stepped, "worker", -_AHEAD), clock=True),
    Fault("clock-master-ahead", 5, partial(_stepped, "leading master", _AHEAD), clock=True),
    Fault("clock-authority-behind", 5, partial(_stepped, "authority", -_AHEAD), clock=True),
)
"""All faults, in the order of the run."""
