"""A test that fails leaves nothing behind that another one stumbles over."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from millwheel.rpc.server import bind, create_server
from tests.again import LIST, MOST, again
from tests.house.tree import ROOT
from tests.patience import SLOWNESS, patience

PROGRAM: Final = """
import asyncio, gc
import pytest
from millwheel.rpc.server import bind, create_server

servers = []

async def test_fails_in_its_middle():
    server = create_server()
    servers.append(server)
    bind(server)
    await server.start()
    waiting = asyncio.create_task(asyncio.Event().wait())
    assert waiting.done()

@pytest.mark.timeout(10)
async def test_comes_after_it():
    servers.clear()
    gc.collect()
    await asyncio.sleep(0)
"""


def test_a_failed_test_that_left_a_server_open_fails_alone(tmp_path: Path) -> None:
    """Regression: the server was collected during another test, which then failed or waited for ever."""
    assert "1 failed, 1 passed" in _run(tmp_path, PROGRAM)


def test_a_failure_shows_the_guarantee_and_the_section(tmp_path: Path) -> None:
    marked = """
import pytest

@pytest.mark.guarantee("G1", "G8", section="7.1")
def test_fails():
    assert False

@pytest.mark.paper(section="fig. 12")
def test_fails_too():
    assert False

@pytest.mark.guarantee("G2", section="6.2")
def test_passes():
    pass
"""
    shown = [line for line in _run(tmp_path, marked).splitlines() if line.startswith("holds")]
    assert shown == ["holds G1, G8 (section 7.1)", "holds fig. 12"]


def test_a_failure_shows_the_logs_of_its_servers(tmp_path: Path) -> None:
    """A server that crashes says where its threads were. One of a former test is not shown."""
    crashed = """
import signal
from tests.system.server import Server

async def test_has_a_server_of_its_own(tmp_path):
    async with Server(tmp_path / "db", tmp_path / "former.log"):
        pass

async def test_sees_its_server_crash(tmp_path):
    async with Server(tmp_path / "db", tmp_path / "own.log") as server:
        server.process.send_signal(signal.SIGSEGV)
        await server.ended()
        assert False
"""
    shown = _run(tmp_path, crashed)
    _, _, end = shown.partition("own.log")
    assert f"it has ended with {-signal.SIGSEGV}" in end
    assert "Fatal Python error: Segmentation fault" in end
    assert "former.log" not in shown


def test_a_few_failures_have_a_second_try_alone(capsys: pytest.CaptureFixture[str]) -> None:
    tried: list[str] = []

    def passes(name: str) -> bool:
        tried.append(name)
        return name != "broken"

    assert again(["slow", "slow too"], passes) == 0
    assert "PASSED ONLY ALONE slow\nPASSED ONLY ALONE slow too" in capsys.readouterr().out
    assert again(["broken", "slow"], passes) == 1
    assert "PASSED ONLY ALONE" not in capsys.readouterr().out
    assert tried == ["slow", "slow too", "broken", "slow"]
    assert again([f"test {number}" for number in range(MOST + 1)], passes) == 1, "no single delay did that"
    assert again([], passes) == 1, "what failed was no test"
    assert len(tried) == 4


def test_after_a_process_of_tests_died_nothing_is_tried_again(tmp_path: Path) -> None:
    """Its other tests have not run. So a second try of those that are known to have failed would hide them."""
    fails = "def test_fails():\n    assert False\n"
    dies = "import os, signal\ndef test_dies():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    _run(tmp_path, fails, "-n", "0")
    assert (tmp_path / LIST).read_text() == "test_program.py::test_fails\n"
    shown = _run(tmp_path, fails + dies, "-n", "1")
    assert "test_fails" in shown
    assert "crashed while running 'test_program.py::test_dies'" in shown
    assert not (tmp_path / LIST).read_text()


def _run(tmp_path: Path, text: str, *more: str) -> str:
    """What pytest prints for a program, with the hooks of this suite. The run is none of this one's processes."""
    program = tmp_path / "test_program.py"
    program.write_text(text)
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", *options, str(program), "--tb=short", *more],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")},
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    return done.stdout + done.stderr


def test_a_server_ends_before_the_tasks_of_its_loop() -> None:
    """Regression: gRPC's core wrote into freed memory.

    A task that is cancelled before its server holds the memory that the server fills.
    """
    order: list[str] = []

    async def ends_last() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            order.append("task")

    async def left_open() -> None:
        server = create_server()
        stop = server.stop

        async def stopped(grace: float | None) -> None:
            order.append("server")
            await stop(grace)

        setattr(server, "stop", stopped)  # noqa: B010  # its type is a method's
        bind(server)
        await server.start()
        waiting.append(asyncio.create_task(ends_last()))
        await asyncio.sleep(0)

    waiting: list[asyncio.Task[None]] = []
    asyncio.run(left_open())
    assert order == ["server", "task"]


def test_time_limits_of_tests_are_multiplied_by_one_factor(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("timeout") is not None:
        pytest.skip("--timeout is taken as it is")
    marker = request.node.get_closest_marker("timeout")
    assert marker is not None
    assert marker.args[0] == float(request.config.getini("timeout")) * SLOWNESS


class Farewell(asyncio.Protocol):
    """Closes each connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_to_a_closing_server_is_closed(turns: int) -> None:
    """Regression: asyncio forgot a connection that it had accepted in the same turn. Another test found its socket."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Farewell, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        client.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        server.close()
        async with asyncio.timeout(patience(5)):
            with suppress(ConnectionResetError):
                assert await loop.sock_recv(client, 1) == b""
