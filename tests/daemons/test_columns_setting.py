"""The setting for windows by columns reaches the intervals."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.client.injector import Injector
from millwheel.config import Configuration, load
from millwheel.server.backends import Backends, Notify
from millwheel.server.daemon import run_daemon
from millwheel.server.dev_server import DevSettings, running
from millwheel.server.worker import WORKER
from millwheel.store.memory import MemoryStore
from millwheel.worker.process.worker import Worker, WorkerSettings
from tests.coordination.memory import MemoryCoordinator
from tests.formats import recorded_program
from tests.formats.database import NOON_US, TEXTS, word
from tests.patience import patience, until
from tests.submitting import submit_copy


async def backends(configuration: Configuration, tell: Notify) -> Backends:
    return Backends(MemoryStore(), MemoryCoordinator(), AsyncExitStack())


def configured(place: Path, columns: bool) -> Configuration:
    flags = {"coordinator.kind": "embedded", "coordinator.path": "-", "store.kind": "embedded", "store.path": "-"}
    flags |= {"rpc.listen": "127.0.0.1:0", "metrics.listen": "off", "worker.packages": str(place)}
    return load(None, {}, {**flags, "worker.columns": str(columns).lower()})


@pytest.mark.parametrize("columns", [False, True])
async def test_a_worker_has_the_setting(columns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []

    class Known(Worker):
        def __init__(self, settings: WorkerSettings, *others: Any) -> None:
            found.append(settings.core.columns_from)
            super().__init__(settings, *others)

    monkeypatch.setattr("millwheel.server.worker.Worker", Known)
    stop = asyncio.Event()
    daemon = asyncio.create_task(run_daemon(WORKER, configured(tmp_path, columns), stop, open_with=backends))
    await until(lambda: found)
    stop.set()
    await daemon
    assert bool(found[0]) is columns


async def test_a_development_server_keeps_windows_by_columns(tmp_path: Path) -> None:
    async with running(DevSettings(tmp_path / "db", port=0)) as server:
        await submit_copy(server.address, recorded_program.__file__, "recorded", tmp_path)
        async with asyncio.timeout(patience(60)), Injector("words", address=server.address, process="p") as injector:
            # Together: a delivery of few records is for hooks.
            await injector.send_many([word(number) for number in range(100)], [mw.Timestamp(NOON_US)] * 100)
            await injector.flush()
        cores: list[Any] = [one.built.core for one in server.worker.hosts.hosted.values()]
        assert sum(len(core.state.panes) for core in cores if hasattr(core.state, "panes")) == len(TEXTS)


async def test_a_worker_whose_numpy_does_not_load_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a wheel for another processor."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(mw.UsageError, match=r"cannot be loaded .*worker\.columns = false"):
        await run_daemon(WORKER, configured(tmp_path, True), asyncio.Event(), open_with=backends)
