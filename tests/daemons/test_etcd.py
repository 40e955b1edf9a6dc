"""Daemons and a real etcd: it comes later than they do, goes away, and comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

from deploy.local.etcd import EtcdCluster
from millwheel.client.control import ControlClient
from tests.daemons.process import DaemonProcess, is_serving, metrics_page


async def test_a_master_waits_for_etcd_and_survives_its_outage(tmp_path: Path) -> None:
    etcd = EtcdCluster(tmp_path / "etcd")
    settings = {
        "store.kind": "embedded",
        "store.path": tmp_path / "db",
        "coordinator.endpoints": ",".join(etcd.endpoints),
        "master.lease_seconds": 2,
    }
    try:
        async with DaemonProcess("master", tmp_path / "log", settings) as master:
            waiting = await master.line(f"waiting for etcd at {etcd.endpoints[0]}")
            assert "coordinator.endpoints (environment variable MILLWHEEL_COORDINATOR_ENDPOINTS)" in waiting["message"]
            assert not await is_serving(waiting_at := (await master.line("listening"))["address"])
            etcd.start()
            ready = await master.line("ready")
            assert await is_serving(waiting_at)
            async with ControlClient(ready["address"], patience=20.0) as client:
                assert await client.list_topologies() == []
                etcd.kill(0)
                await asyncio.sleep(3.0)
                etcd.start()
                assert await client.list_topologies() == []
            assert "millwheel_master_leads 1.0" in metrics_page(ready["metrics"])
    finally:
        etcd.stop()
