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
from millwheel.server.dev_server import DevServer, DevSettings, running
from millwheel.worker.interval import IntervalCore, IntervalSettings
from tests.documents.blocks import blocks_of
from tests.system.server import ROOT

START = mw.Timestamp(1_700_000_000_000_000)
QUERIES = 200


def _counter(server: DevServer) -> IntervalCore:
    cores: list[Any] = [one.built.core for one in server.worker.hosts.hosted.values()]
    (core,) = [one for one in cores if isinstance(one, IntervalCore)]
    return core


async def _rows(server: DevServer, core: IntervalCore, keys: list[bytes]) -> list[bytes]:
    rows = await server.worker.hosts.store.read_states(core.state.config.incarnation, keys)
    return [row.key for row in rows if row is not None]


async def _cells(core: IntervalCore) -> list[bytes]:
    return [key for key, _ in core.state.cells.items()]


async def _until(look: Callable[[], Awaitable[list[bytes]]], count: int) -> None:
    """Rows are written behind the journal: look until there are as many."""
    while True:
        if len(await look()) == count:
            return
        await asyncio.sleep(0.02)


@pytest.mark.guarantee("G13", section="8.3")
async def test_the_windows_of_the_readme_leave_no_row_and_no_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zeitgeist.py").write_text(blocks_of(ROOT / "README.md")[0].code)
    settings = IntervalSettings(flush_interval=10_000, checkpoint_entries=2)
    monkeypatch.setattr("millwheel.server.dev_server.IntervalSettings", lambda **_: settings)
    async with running(DevSettings(tmp_path / "db", port=0)) as server:
        packaged = load(f"{tmp_path / 'zeitgeist.py'}:zeitgeist")
        query: Any = packaged.topology.plan().streams["queries"].type
        async with ControlClient(server.address) as client:
            await client.upload_package(packaged.package.digest, packaged.package.data)
            await client.submit(packaged.spec())
        async with Injector("queries", address=server.address, process="web-1") as injector:
            for number in range(QUERIES):
                await injector.send(query(f"query {number}"), timestamp=START)
            await injector.flush()
            core = _counter(server)
            await _until(lambda: _cells(core), QUERIES)
            keys = await _cells(core)
            await _until(lambda: _rows(server, core, keys), QUERIES)
            await injector.advance(mw.Timestamp(START + mw.seconds(2)))
            await _until(lambda: _rows(server, core, keys), 0)
            await _until(lambda: _cells(core), 0)
        assert core.state.counts.records == QUERIES
        assert core.state.timers.count == 0
