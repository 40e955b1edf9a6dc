"""A worker that starts while a topology's record is damaged (decision 18; 7.1)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from millwheel.config import Configuration, load
from millwheel.coordination.contract import Put
from millwheel.model.backoff import Backoff
from millwheel.model.catalog_keys import topology_key, worker_key
from millwheel.server import startup
from millwheel.server.backends import Backends, Notify
from millwheel.server.daemon import run_daemon
from millwheel.server.worker import WORKER
from millwheel.store.memory import MemoryStore
from tests.coordination.memory import MemoryCoordinator
from tests.patience import patience, until


@pytest.mark.guarantee("G8", section="7.1")
async def test_a_worker_that_cannot_read_a_topology_gets_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: the worker registered and ran nothing.

    It was given intervals that workers with the record in memory can run.
    """
    monkeypatch.setattr(startup, "RETRY_BACKOFF", Backoff(0.05, 0.05))
    coordinator, key = MemoryCoordinator(), topology_key("words")
    await coordinator.transact((), [Put(key, b"\xff")])

    async def backends(configuration: Configuration, tell: Notify) -> Backends:
        return Backends(MemoryStore(), coordinator, AsyncExitStack())

    flags = {"coordinator.kind": "embedded", "coordinator.path": "-", "store.kind": "embedded", "store.path": "-"}
    flags |= {"rpc.listen": "127.0.0.1:0", "metrics.listen": "off", "worker.id": "w"}
    configuration = load(None, {}, {**flags, "worker.packages": str(tmp_path)})
    stop = asyncio.Event()
    daemon = asyncio.create_task(run_daemon(WORKER, configuration, stop, open_with=backends))
    await until(lambda: "topologies/words is damaged" in caplog.text)
    assert "restore the coordinator from a snapshot" in caplog.text
    assert await coordinator.get(worker_key("w.0")) is None
    await coordinator.transact((), (), [key])
    await until(lambda: coordinator.get(worker_key("w.0")), patience(5))
    stop.set()
    await daemon
