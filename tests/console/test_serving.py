"""Who serves the console: the command start-dev, and a master daemon that is asked to."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession

from deploy.local.child import free_ports
from millwheel.cli.server import DEFAULT_UI_PORT, ui_port_of
from millwheel.rpc.addresses import DEFAULT_PORT
from tests.daemons.together import together
from tests.patience import patience
from tests.system.server import Server

HEALTH = "api/v1/ClusterService/GetClusterHealth"


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def test_start_dev_prints_where_its_console_is(tmp_path: Path, http: ClientSession) -> None:
    async with Server(tmp_path / "db", tmp_path / "log") as server:
        assert server.process.stdout is not None
        line = (await server.process.stdout.readline()).decode()
        before, url = line.split(" at ")
        assert before == "its console is"
        async with http.get(url.strip()) as response:
            assert "<title>MillWheel</title>" in await response.text()
        async with http.get(url.strip() + HEALTH) as response:
            (master,) = (await response.json())["masters"]
            assert master == {"address": server.address, "leads": True, "console": url.strip()}


async def test_without_a_console_nothing_is_printed(tmp_path: Path) -> None:
    async with Server(tmp_path / "db", tmp_path / "log", options=["--no-ui"]) as server:
        server.process.terminate()
        assert server.process.stdout is not None
        assert await server.process.stdout.read() == b""
        assert await server.ended(patience(10)) == 0


def test_a_start_does_not_load_the_console() -> None:
    """Its code is loaded once the server is ready."""
    script = "import sys; import millwheel.server.dev_server; print([one for one in sys.modules if 'aiohttp' in one])"
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "[]"


def test_the_default_port_is_taken_if_it_is_free() -> None:
    assert ui_port_of(9, DEFAULT_PORT, "127.0.0.1") == 9
    assert ui_port_of(None, DEFAULT_PORT + 1, "127.0.0.1") == 0, "a second server has another console"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.2", DEFAULT_UI_PORT))
        assert ui_port_of(None, DEFAULT_PORT, "127.0.0.2") == DEFAULT_UI_PORT
        probe.listen()
        assert ui_port_of(None, DEFAULT_PORT, "127.0.0.2") == 0


async def test_each_master_daemon_serves_the_whole_cluster(tmp_path: Path, http: ClientSession) -> None:
    ports = free_ports(2)
    async with together(tmp_path, masters=[{"master.ui_port": str(port)} for port in ports]) as cluster:
        for port in ports:
            async with http.get(f"http://127.0.0.1:{port}/{HEALTH}") as response:
                health = await response.json()
            assert {one["address"] for one in health["masters"]} == {one.address for one in cluster.masters}
            assert [one["leads"] for one in health["masters"]].count(True) == 1
            assert {one["shard"] for one in health["authorities"]} == {0, 1}
