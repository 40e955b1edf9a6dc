"""Daemons and a real etcd and Cassandra, which come later than they do, go away, come back, and ask for passwords."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from deploy.local.etcd import EtcdCluster
from millwheel.client.control import ControlClient
from millwheel.coordination.etcd import EtcdCoordinator, EtcdSettings
from millwheel.model.catalog_keys import WORKERS
from tests.components import cassandra, etcd
from tests.daemons.process import DaemonProcess, is_serving, metrics_page
from tests.patience import patience


async def test_a_master_waits_for_etcd_and_survives_its_outage(tmp_path: Path) -> None:
    own = EtcdCluster(tmp_path / "etcd")
    settings = {
        "store.kind": "embedded",
        "store.path": tmp_path / "db",
        "coordinator.endpoints": ",".join(own.endpoints),
        "master.lease_seconds": 2,
    }
    try:
        async with DaemonProcess("master", tmp_path / "log", settings) as master:
            waiting = await master.line(f"waiting for etcd at {own.endpoints[0]}")
            assert "coordinator.endpoints: environment variable MILLWHEEL_COORDINATOR_ENDPOINTS" in waiting["message"]
            assert not await is_serving(waiting_at := (await master.line("listening"))["address"])
            own.start()
            ready = await master.line("ready")
            assert await is_serving(waiting_at)
            async with ControlClient(ready["address"], patience=patience(20)) as client:
                assert await client.list_topologies() == []
                own.kill(0)
                await asyncio.sleep(3.0)
                own.start()
                assert await client.list_topologies() == []
            assert "millwheel_master_leads 1.0" in metrics_page(ready["metrics"])
    finally:
        own.stop()


@pytest.mark.timeout(300)
async def test_wrong_credentials_are_named_and_every_process_registers(tmp_path: Path) -> None:
    """The test uses a real Cassandra with a password, and a real etcd."""
    node, name = cassandra(), f"daemons_{os.getpid()}"
    settings: dict[str, object] = {
        "coordinator.endpoints": ",".join(etcd().endpoints),
        "coordinator.prefix": f"{name}/",
        "store.contact_points": ",".join(node.contact_points),
        "store.keyspace": name,
        "store.username": node.username,
        "store.password": node.password,
        "worker.id": "w",
        "worker.processes": 2,
        "worker.packages": tmp_path / "packages",
    }
    async with DaemonProcess("worker", tmp_path / "wrong.log", {**settings, "store.password": "mistaken"}) as worker:
        shown = await worker.line("set store.username and store.password to a role that may log in")
        assert shown["level"] == "error"
        assert "mistaken" not in worker.log.read_text()
    coordinator = EtcdCoordinator(EtcdSettings(etcd().endpoints, f"{name}/"))
    try:
        async with DaemonProcess("worker", tmp_path / "log", settings) as worker:
            for index in range(2):
                await worker.line("ready", within=patience(60), process=index)
            registered = [entry.key for entry in (await coordinator.list(WORKERS)).entries]
            assert registered == ["workers/w.0", "workers/w.1"]
            worker.process.send_signal(signal.SIGTERM)
            assert await worker.ended() == 0
            assert (await coordinator.list(WORKERS)).entries == (), "revoked, not left to end by themselves"
    finally:
        await coordinator.close()
