"""Commands in forks are what commands in new processes are."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.patience import patience, until
from tests.system import forking
from tests.system.server import RunningCommand, Server, run_cli

OWN = {"NO_COLOR": "1", "COLUMNS": "200", "PYTHONPATH": str(forking.ROOT)}
PROBE = """
import json, os, signal, sys, threading
import millwheel as mw

target = lambda number: os.path.realpath(f"/proc/self/fd/{number}").partition(":")[0]
open_files = [number for number in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{number}")]
handlers = {one.name: str(signal.getsignal(one)).partition(" at ")[0] for one in signal.Signals}
print(json.dumps({
    "argv": sys.argv,
    "path": sys.path,
    "folder": os.getcwd(),
    "environment": {name: text for name, text in os.environ.items() if name != "GRPC_EXPERIMENTS"},
    "open": len(open_files),
    "threads": [one.name for one in threading.enumerate()],
    "tasks": len(os.listdir("/proc/self/task")),
    "handlers": handlers,
    "streams": [str(one) for one in (sys.stdin, sys.stdout, sys.stderr)],
    "typed": sys.stdin.read(),
    "forked": "tests.system.forker" in sys.modules,
    "tests": sorted(name for name in sys.modules if "test" in name.partition(".")[0]),
}), file=sys.stderr)
import atexit
atexit.register(print, "the interpreter has ended", file=sys.stderr)
probe = mw.Topology("probe")
probe.source("numbers", int)
"""

IN_THE_BACKGROUND = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
import tests.conftest
said = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
subprocess.run([sys.executable, "-c", said], check=True)
"""


@asynccontextmanager
async def sleeping(folder: Path) -> AsyncIterator[Path]:
    """A command that sleeps, and is given up at the end of the block. The block gets its folder in /proc."""
    program, number = folder / "sleeping.py", folder / "number"
    program.write_text(f"import os, time\nopen({str(number)!r}, 'w').write(f'{{os.getpid()}}.')\ntime.sleep(600)")
    running = asyncio.create_task(run_cli("", "topology", "graph", f"{program}:probe"))
    await until(lambda: number.exists() and number.read_text().endswith("."))
    yield Path("/proc") / number.read_text().rstrip(".")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_fork_is_like_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not forking.fits(os.environ | OWN):
        pytest.skip("a run that is measured has no forks")
    (tmp_path / "probe.py").write_text(PROBE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLWHEEL_TOKEN", "of this test")
    command = ("topology", "graph", "probe.py:probe")
    async with sleeping(tmp_path):
        forked = await run_cli("127.0.0.1:1", *command, typed="some\nlines")
    new = await run_cli("127.0.0.1:1", *command, typed="some\nlines", new=True)
    assert (forked.code, forked.out) == (new.code, new.out) == (0, new.out)
    said = []
    for finished in (forked, new):
        first, *rest = finished.err.splitlines()
        assert rest == ["the interpreter has ended"]
        said.append(json.loads(first))
    assert (said[0].pop("forked"), said[1].pop("forked")) == (True, False)
    assert said[0].pop("tests") == ["tests", "tests.system", "tests.system.forker"], "nothing of a test is loaded"
    said[1].pop("tests")
    assert said[0] == said[1]
    assert said[0]["environment"]["MILLWHEEL_TOKEN"] == "of this test"


@pytest.mark.parametrize("command", [("topology", "lst"), ("topology", "describe", "x"), ("topology", "--help"), ()])
async def test_a_fork_fails_and_helps_as_a_new_process(command: tuple[str, ...]) -> None:
    assert await run_cli("127.0.0.1:1", *command) == await run_cli("127.0.0.1:1", *command, new=True)


async def test_a_fork_that_is_given_up_is_killed(tmp_path: Path) -> None:
    async with sleeping(tmp_path) as process:
        assert process.exists()
    assert not process.exists()
    assert (await run_cli("", "version")).code == 0, "others still run"


async def test_a_servers_first_life_is_a_fork_alone(tmp_path: Path) -> None:
    def program() -> bytes:
        return Path(f"/proc/{server.process.pid}/cmdline").read_bytes()

    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        assert (b"forker" in program()) == forking.fits(os.environ | OWN)
        assert (await run_cli(server.address, "topology", "list")).code == 0
        assert await server.stop() == server.process.returncode == 0
        await server.start()
        assert b"forker" not in program(), "it has a seed of hashes of its own"
    assert server.process.returncode == -signal.SIGKILL


async def test_a_server_in_a_fork_is_killed(tmp_path: Path) -> None:
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        process = Path("/proc") / str(server.process.pid)
        assert process.exists()
    assert server.process.returncode == -signal.SIGKILL
    assert not process.exists()


def test_processes_of_a_run_in_the_background_take_sigint() -> None:
    command = [sys.executable, "-c", IN_THE_BACKGROUND]
    done = subprocess.run(command, cwd=forking.ROOT, stdout=subprocess.PIPE, check=True, timeout=patience(20))
    assert done.stdout == b"True\n"


async def test_the_log_of_a_process_that_does_not_end_is_shown(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo 'it waits' >&2; exec sleep 600"]
    async with RunningCommand(tmp_path / "log", command, piped=True) as running:
        await until(running.tail)
        with pytest.raises(TimeoutError, match=r"not ended within 0\.01 s; its log:\nit waits"):
            await running.ended(0.01)
        with pytest.raises(TimeoutError, match=r"not written a line within 0\.01 s; its log:\nit waits"):
            await running.printed(0.01)


def test_other_variables_than_those_of_the_run_prevent_a_fork() -> None:
    known = os.environ | OWN
    if not any(name.startswith("COVERAGE_") for name in known):
        assert forking.fits({**known, "MILLWHEEL_ADDRESS": "x"})
    for name, text in (("COLUMNS", "80"), ("PYTHONHASHSEED", "0"), ("ONLY_HERE", "1"), ("COVERAGE_RUN", "1")):
        assert not forking.fits({**known, name: text})
