"""Incidents of machines: one that swaps, a cut link, a full disk, masters that are paused, a node that is lost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from millwheel.model.interval_map import interval_from_proto
from millwheel.rpc.failures import RequestError
from tests.faults.accidents import kept_full
from tests.incidents.duty import is_chosen, on_duty
from tests.incidents.site import Site
from tests.patience import patience, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(2700)]

KEY: Final = b"item 3"
LATE: Final = frozenset({"MillwheelWorkStuck", "MillwheelWatermarkStuck"})
"""What stands still for long has these alerts, too. What holds it makes no difference."""
_STANDS_SECONDS: Final = 2.2
_RUNS_SECONDS: Final = 0.3
"""A worker that swaps. It stands for less than its lease, so it keeps its intervals."""
_HICCUP_SECONDS: Final = 4.5
"""A pause of a master. It is longer than the usual lease."""


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do it during the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def owner_of(site: Site, computation: str) -> str:
    """The worker that has the items of a computation, by its name in the cluster."""
    found = await site.cluster.client.list_intervals("shop", computation)
    return next(one.interval.owner.worker_id for one in found if KEY in interval_from_proto(one.interval.keys))


async def two_workers(site: Site) -> tuple[str, str]:
    """The workers of "count" and of "sold", which are two."""
    counting = await owner_of(site, "count")
    workers = (await site.cluster.client.cluster_health()).workers
    other = next(one.worker_id for one in workers if one.worker_id != counting)
    moved = await site.cli("interval", "move", "shop/sold", "--key", KEY.decode(), "--to", other)
    assert moved.code == 0, moved.err
    return counting, other


def service_of(worker: str) -> str:
    """The name of a worker's daemon: ``worker-1.0`` is a process of "worker 1"."""
    return worker.partition(".")[0].replace("-", " ")


@pytest.mark.skipif(not is_chosen("worker-that-swaps"), reason="not chosen")
async def test_a_worker_that_swaps(tmp_path: Path) -> None:
    also = LATE | {"MillwheelStoreSlow", "MillwheelProcessDown"}
    async with on_duty("worker-that-swaps", tmp_path, "MillwheelProcessSlow", also=also) as duty:
        worker = await owner_of(duty.site, "count")
        process = duty.site.cluster.daemons.services.processes[service_of(worker)]

        async def swap() -> None:
            while process.is_running:
                await asyncio.to_thread(process.pause)
                try:
                    await asyncio.sleep(_STANDS_SECONDS)
                finally:
                    process.resume()
                await asyncio.sleep(_RUNS_SECONDS)

        async with meanwhile(swap()):
            duty.caused(f"{worker} runs for a tenth of its time")
            await duty.paged()
            await duty.finds(f"worker {worker} at", "cluster", "health")
            await duty.finds(worker, "worker", "list")
            await duty.console_shows(f"worker {worker} at", "ClusterService/GetClusterHealth")
            await duty.acts_on_service("stop", service_of(worker))
            await duty.mended()


@pytest.mark.skipif(not is_chosen("cut-link"), reason="not chosen")
async def test_a_cut_link(tmp_path: Path) -> None:
    also = LATE | {"MillwheelProcessDown"}
    async with on_duty("cut-link", tmp_path, "MillwheelLinkBroken", also=also, with_links=True) as duty:
        one, other = await two_workers(duty.site)
        links, line = duty.site.cluster.links, (service_of(one), service_of(other))
        await until(lambda: links.lines[line], patience(20), every=0.2)
        links.cut(*line)
        duty.caused(f"nothing passes between {one} and {other}")
        await duty.paged()
        await duty.finds(f"worker {one} has not reached worker {other}", "cluster", "health")
        await duty.console_shows(f"worker {one} has not reached worker {other}", "ClusterService/GetClusterHealth")
        await duty.acts_on_service("stop", service_of(one))
        await duty.mended()


@pytest.mark.skipif(not is_chosen("full-disk"), reason="not chosen")
async def test_a_full_disk(tmp_path: Path) -> None:
    also = LATE | {"MillwheelStoreNodeDown", "MillwheelStoreSlow"}
    async with on_duty("full-disk", tmp_path, "MillwheelStoreFailing", also=also, disk="900m") as duty:
        (node,), disk = duty.site.cluster.cassandra.nodes, duty.site.cluster.disk
        if disk is None:
            pytest.skip("a small file system cannot be mounted here")
        async with meanwhile(kept_full(disk / "filler")):
            duty.caused("the disk of Cassandra is full")
            await duty.paged()
            await duty.finds(f"node {node.address} of the store", "cluster", "health")
            await duty.console_shows(f"node {node.address} of the store", "ClusterService/GetClusterHealth")
        assert re.search("No space left on device|SIGBUS", node.log.read_text(errors="replace"))
        duty.acts_by("systemctl restart cassandra")
        (disk / "filler").unlink()
        node.kill()
        await asyncio.to_thread(node.start)
        await duty.mended()


@pytest.mark.skipif(not is_chosen("leader-that-flaps"), reason="not chosen")
async def test_a_leader_that_flaps(tmp_path: Path) -> None:
    also = frozenset({"MillwheelProcessSlow"})
    async with on_duty("leader-that-flaps", tmp_path, "MillwheelLeaderChanges", also=also) as duty:
        cluster = duty.site.cluster

        async def hiccup() -> None:
            while True:
                with suppress(RequestError):  # no master leads just now
                    leader = await cluster.victim("leading master")
                    await asyncio.to_thread(leader.pause)
                    try:
                        await asyncio.sleep(_HICCUP_SECONDS)
                    finally:
                        leader.resume()
                await asyncio.sleep(2 * _HICCUP_SECONDS)

        async with meanwhile(hiccup()):
            duty.caused("the machine of the leading master stands still for some seconds, again and again")
            await duty.paged()
            await duty.finds("the leading master has changed", "cluster", "health")
            await duty.finds("its process did not get to run for", "cluster", "health")
            await duty.finds("master.elected", "event", "list")
            await duty.console_shows("its process did not get to run for", "ClusterService/GetClusterHealth")
            await duty.console_shows("master.elected", "ClusterService/ListEvents")
            config = cluster.daemons.config
            config.write_text(config.read_text().replace("[master]\n", "[master]\nlease_seconds = 15\n", 1))
            for master in ("master 1", "master 2"):
                await duty.acts_on_service("restart", master)
            await duty.mended(patience(600))


@pytest.mark.skipif(not is_chosen("lost-node"), reason="not chosen")
async def test_a_lost_node(tmp_path: Path) -> None:
    async with on_duty("lost-node", tmp_path, "MillwheelStoreNodeDown", also=LATE, nodes=3) as duty:
        node = duty.site.cluster.cassandra.nodes[-1]
        node.kill()
        duty.caused("a node of Cassandra is killed")
        await duty.paged()
        name = f"node {node.address} of the store has not answered"
        await duty.finds(name, "cluster", "health")
        await duty.console_shows(name, "ClusterService/GetClusterHealth")
        duty.acts_by("systemctl start cassandra")
        await asyncio.to_thread(node.start)
        await duty.mended()
