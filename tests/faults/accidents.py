"""What befalls the cluster: each accident says whom it concerns, and mends what does not mend itself."""

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
"""Seconds: more than twice a worker's lease."""
_AHEAD: Final = 20.0
"""Seconds that a clock is stepped: more than the ten within which clocks count as equal."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``lasts``: seconds until it is mended. ``clock``: clocks are wrong meanwhile."""

    name: str
    lasts: float
    accident: Callable[[Cluster], AsyncIterator[str]]
    """It happens, and yields to whom; then it is mended."""
    clock: bool = False

    def befall(self, cluster: Cluster) -> AbstractAsyncContextManager[str]:
        """Entered, it happens; left, it is mended."""
        return asynccontextmanager(self.accident)(cluster)


async def _struck(role: str, how: str, cluster: Cluster) -> AsyncIterator[str]:
    """Killed by SIGKILL: a daemon is started again by its service manager, all else when the fault is mended.

    Paused by SIGSTOP, until SIGCONT in the end: it goes on as if nothing had been, and others have its place.
    """
    one = await cluster.victim(role)
    (one.kill if how == "killed" else one.pause)()
    try:
        yield one.name
    finally:
        await asyncio.to_thread(one.start if how == "killed" else one.resume)


async def _disk_full(cluster: Cluster) -> AsyncIterator[str]:
    """The disk of the node is full until the end. Then the node is started again."""
    if cluster.disk is None:
        yield "nobody: a small file system cannot be mounted here"
        return
    node, filler = await cluster.victim("cassandra"), cluster.disk / "filler"
    filling = asyncio.create_task(_kept_full(filler))
    try:
        yield node.name
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
        node.kill()
        filler.unlink()
        await asyncio.to_thread(node.start)


async def _kept_full(filler: Path) -> None:
    """What becomes free is taken at once."""
    with filler.open("wb", buffering=0) as file:
        while True:
            for size in (1 << 22, 1 << 12, 1):
                with suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass
            await asyncio.sleep(0.05)


async def _parted(others: str, delay: float | None, cluster: Cluster) -> AsyncIterator[str]:
    """A worker's links to ``others`` are slow by ``delay`` seconds. None: nothing passes on them.

    AssertionError if it was connected with nobody, or not with the whole store: one node would do as well. But masters,
    who ask workers now and then, need not be connected at the moment.
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
"""By role, for how many seconds it is killed and paused."""

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
"""In the order in which they come."""
