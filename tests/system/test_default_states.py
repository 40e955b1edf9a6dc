"""The README's own computation keeps nothing of a key whose windows have closed (4.4), on the embedded store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.cli.loading import load
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.model.keys import ALL_KEYS
from millwheel.worker.interval import IntervalCore, IntervalSettings
from tests.documents.blocks import blocks_of
from tests.system.few_workers import FewWorkers, few_workers
from tests.system.server import ROOT

START = mw.Timestamp(1_700_000_000_000_000)
QUERIES = 200


def _counter(cluster: FewWorkers) -> IntervalCore:
    (worker,) = cluster.workers
    cores: list[Any] = [one.built.core for one in worker.hosts.hosted.values()]
    (core,) = [one for one in cores if isinstance(one, IntervalCore)]
    return core


async def _rows(cluster: FewWorkers, core: IntervalCore) -> list[bytes]:
    rows = await cluster.database.store.scan_states(core.state.config.computation, ALL_KEYS, None, 1_000)
    return [row.key for row in rows]


async def _cells(core: IntervalCore) -> list[bytes]:
    return [key for key, _ in core.state.cells.items()]


async def _until(look: Callable[[], Awaitable[list[bytes]]], count: int) -> None:
    """Rows are written behind the journal: look until there are as many."""
    while True:
        if len(await look()) == count:
            return
        await asyncio.sleep(0.02)


@pytest.mark.guarantee("G13", section="8.3")
async def test_the_windows_of_the_readme_leave_no_row_and_no_cell(tmp_path: Path) -> None:
    (tmp_path / "zeitgeist.py").write_text(blocks_of(ROOT / "README.md")[0].code)
    settings = IntervalSettings(flush_interval=10_000, checkpoint_entries=2)
    async with few_workers(tmp_path, 1, settings) as cluster:
        packaged = load(f"{tmp_path / 'zeitgeist.py'}:zeitgeist")
        query: Any = packaged.topology.plan().streams["queries"].type
        async with ControlClient(cluster.address) as client:
            await client.upload_package(packaged.package.digest, packaged.package.data)
            await client.submit(packaged.spec())
        async with Injector("queries", address=cluster.address, process="web-1") as injector:
            for number in range(QUERIES):
                await injector.send(query(f"query {number}"), timestamp=START)
            await injector.flush()
            core = _counter(cluster)
            await _until(lambda: _rows(cluster, core), QUERIES)
            await injector.advance(mw.Timestamp(START + mw.seconds(2)))
            await _until(lambda: _rows(cluster, core), 0)
            await _until(lambda: _cells(core), 0)
        assert core.state.counts.records == QUERIES
        assert core.state.timers.count == 0
