"""What befalls the cluster: each accident says whom it concerns, and mends what does not mend itself."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millwheel.config import WorkerSection
from tests.faults.cluster import Cluster

__all__ = ["FAULTS", "Fault"]

Accident = Callable[[Cluster], AbstractAsyncContextManager[str]]
"""Entered, it happens, and says to whom; left, it is mended."""

_PAST_LEASE: Final = 2 * WorkerSection().lease_seconds + 2
"""Seconds: more than twice a worker's lease."""
_AHEAD: Final = 20.0
"""Seconds that a clock is stepped: more than the ten within which clocks count as equal."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``lasts``: seconds until it is mended. ``clock``: clocks are wrong meanwhile."""

    name: str
    lasts: float
    accident: Accident
    clock: bool = False


# Daemons.


def _killed(role: str) -> Accident:
    """SIGKILL; the daemon is started again by whoever looks after it."""

    @asynccontextmanager
    async def accident(cluster: Cluster) -> AsyncIterator[str]:
        name = await _who(cluster, role)
        cluster.daemons.kill(name)
        yield name

    return accident


def _paused(role: str) -> Accident:
    """SIGSTOP, and SIGCONT in the end: it goes on as if nothing had been, and others have its place."""

    @asynccontextmanager
    async def accident(cluster: Cluster) -> AsyncIterator[str]:
        name = await _who(cluster, role)
        process = cluster.daemons.services.processes[name]
        process.signal(signal.SIGSTOP)
        try:
            yield name
        finally:
            process.signal(signal.SIGCONT)

    return accident


async def _who(cluster: Cluster, role: str) -> str:
    match role:
        case "leading master":
            return await cluster.leading_master()
        case "standby master":
            return await cluster.standby_master()
        case "authority":
            return await cluster.authority_of_shard(0)
        case _:
            return await cluster.busiest_worker()


# etcd and Cassandra.


@asynccontextmanager
async def _member_killed(cluster: Cluster) -> AsyncIterator[str]:
    number = await cluster.leading_member()
    cluster.etcd.kill(number)
    try:
        yield f"etcd {number + 1}, which led"
    finally:
        await asyncio.to_thread(cluster.etcd.start, number)


@asynccontextmanager
async def _member_paused(cluster: Cluster) -> AsyncIterator[str]:
    number = await cluster.leading_member()
    cluster.etcd.pause(number)
    try:
        yield f"etcd {number + 1}, which led"
    finally:
        cluster.etcd.resume(number)


@asynccontextmanager
async def _node_killed(cluster: Cluster) -> AsyncIterator[str]:
    node = cluster.cassandra.nodes[-1]
    node.kill()
    try:
        yield f"cassandra {len(cluster.cassandra.nodes)}"
    finally:
        await asyncio.to_thread(node.start)


@asynccontextmanager
async def _node_paused(cluster: Cluster) -> AsyncIterator[str]:
    node = cluster.cassandra.nodes[-1]
    node.pause()
    try:
        yield f"cassandra {len(cluster.cassandra.nodes)}"
    finally:
        node.resume()


@asynccontextmanager
async def _disk_full(cluster: Cluster) -> AsyncIterator[str]:
    """The node does what it does by itself when its disk is full; then there is room, and it is started again."""
    if cluster.disk is None:
        yield "nobody: a small file system cannot be mounted here"
        return
    filler = cluster.disk / "filler"
    filling = asyncio.create_task(_kept_full(filler))
    try:
        yield f"cassandra {len(cluster.cassandra.nodes)}"
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
        node = cluster.cassandra.nodes[-1]
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


# Links and clocks.


def _from(worker: str, others: str, parted: set[str], cluster: Cluster) -> str:
    """Who is parted from whom. AssertionError if it is nobody, or not the whole store: one node would do as well; but
    masters, who ask workers now and then, need not be connected at the moment."""
    nodes = {f"cassandra {number}" for number, _ in enumerate(cluster.cassandra.nodes, 1)}
    whole = parted == nodes if others == "cassandra *" else bool(parted) or others == "master *"
    assert whole, f"of {others}, {worker} is connected to {sorted(parted)} alone"
    return f"{worker}, {', '.join(sorted(parted))}"


def _cut(others: str) -> Accident:
    @asynccontextmanager
    async def accident(cluster: Cluster) -> AsyncIterator[str]:
        worker = await cluster.busiest_worker()
        parted = cluster.links.cut(worker, others)
        try:
            yield _from(worker, others, parted, cluster)
        finally:
            cluster.links.mend()

    return accident


def _slow(others: str, delay: float) -> Accident:
    @asynccontextmanager
    async def accident(cluster: Cluster) -> AsyncIterator[str]:
        worker = await cluster.busiest_worker()
        slowed = cluster.links.slow(worker, others, delay)
        try:
            yield f"{_from(worker, others, slowed, cluster)}, by {delay * 1e3:.0f} ms"
        finally:
            cluster.links.mend()

    return accident


def _stepped(role: str, seconds: float) -> Accident:
    @asynccontextmanager
    async def accident(cluster: Cluster) -> AsyncIterator[str]:
        name = await _who(cluster, role)
        address = cluster.daemons.addresses[name]
        cluster.clocks.step(address, seconds)
        try:
            yield f"{name}, by {seconds:+.0f} s"
        finally:
            cluster.clocks.step(address, 0)

    return accident


FAULTS: Final = (
    Fault("worker-killed", 2, _killed("worker")),
    Fault("worker-paused", _PAST_LEASE, _paused("worker")),
    Fault("master-leading-killed", 2, _killed("leading master")),
    Fault("master-leading-paused", 8, _paused("leading master")),
    Fault("master-standby-killed", 2, _killed("standby master")),
    Fault("master-standby-paused", 8, _paused("standby master")),
    Fault("authority-killed", 2, _killed("authority")),
    Fault("authority-paused", 8, _paused("authority")),
    Fault("etcd-killed", 5, _member_killed),
    Fault("etcd-paused", 8, _member_paused),
    Fault("cassandra-killed", 5, _node_killed),
    Fault("cassandra-paused", _PAST_LEASE, _node_paused),
    Fault("cassandra-disk-full", 10, _disk_full),
    Fault("cut-worker-cassandra", _PAST_LEASE, _cut("cassandra *")),
    Fault("cut-worker-etcd", _PAST_LEASE, _cut("etcd *")),
    Fault("cut-worker-worker", _PAST_LEASE, _cut("worker *")),
    Fault("cut-worker-authority", _PAST_LEASE, _cut("authority *")),
    Fault("cut-worker-master", _PAST_LEASE, _cut("master *")),
    Fault("slow-worker-cassandra", 8, _slow("cassandra *", 0.1)),
    Fault("slow-worker-etcd", 8, _slow("etcd *", 0.1)),
    Fault("slow-worker-worker", 8, _slow("worker *", 0.1)),
    Fault("slow-worker-authority", 8, _slow("authority *", 0.1)),
    Fault("clock-worker-ahead", 8, _stepped("worker", _AHEAD), clock=True),
    Fault("clock-worker-behind", 8, _stepped("worker", -_AHEAD), clock=True),
    Fault("clock-master-ahead", 5, _stepped("leading master", _AHEAD), clock=True),
    Fault("clock-authority-behind", 5, _stepped("authority", -_AHEAD), clock=True),
)
"""In the order in which they come."""
