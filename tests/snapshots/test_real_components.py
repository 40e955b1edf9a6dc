"""A snapshot of a cluster with etcd and Cassandra, as processes, and its restore into a development server."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from millwheel.client.control import ControlClient
from tests.components import cassandra, etcd
from tests.daemons.process import DaemonProcess
from tests.patience import patience, until
from tests.snapshots import shop
from tests.snapshots.loading import STEP, accounts, expected, expected_accounts, sell, totals
from tests.submitting import submit_copy
from tests.system.server import Server, run_cli

FIRST = 260
"""Orders before the snapshot. It is taken while others come."""


@pytest.mark.guarantee("G1", section="6.1")
@pytest.mark.timeout(500)
async def test_a_cluster_is_restored_into_a_development_server(tmp_path: Path) -> None:
    node, name, place = cassandra(), f"snapshots_{os.getpid()}", str(tmp_path / "backups")
    sent, ends = [0], asyncio.Event()
    settings: dict[str, object] = {
        "coordinator.endpoints": ",".join(etcd().endpoints),
        "coordinator.prefix": f"{name}/",
        "store.contact_points": ",".join(node.contact_points),
        "store.keyspace": name,
        "store.username": node.username,
        "store.password": node.password,
    }
    async with AsyncExitStack() as stack:
        ready = {}
        for role in ("authority", "master", "worker"):
            own: dict[str, object] = {}
            if role == "worker":
                own = {"worker.packages": tmp_path / "packages", "worker.id": "w"}
            elif role == "master":
                own = {"master.snapshot_locations": place}
            daemon = DaemonProcess(role, tmp_path / f"{role}.log", settings | own)
            await stack.enter_async_context(daemon)
            ready[role] = await daemon.line("ready", within=patience(30))
        address = ready["master"]["address"]
        await submit_copy(address, shop.__file__, "shop", tmp_path)
        selling = asyncio.create_task(sell(address, 0, ends, lambda count: sent.__setitem__(0, count), 0.02))
        await until(lambda: sent[0] > FIRST, patience(60))
        checkpoint = sent[0] // STEP * STEP
        async with ControlClient(address, deadline=patience(60)) as client:
            taken = await client.create_snapshot("shop", place, "s")
        print(f"{checkpoint=} {sent[0]=} {taken.stall_us=} {taken.attempts=}")
        ends.set()
        orders = await selling
        assert Counter(await totals(address, "all")) == expected(orders)
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        done = await run_cli(server.address, "snapshot", "restore", place, "s", timeout=patience(60))
        assert done.code == 0, done.err
        await sell(server.address, checkpoint, orders, lambda count: None)
        assert Counter(await totals(server.address, "all")) == expected(orders)
        assert set(await accounts(server.address)) == expected_accounts(orders)
