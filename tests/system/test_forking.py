"""Commands in forks are what commands in new processes are."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from tests.patience import until
from tests.system import forking
from tests.system.server import Server, run_cli

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


async def test_a_fork_is_like_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not forking.fits(os.environ | OWN):
        pytest.skip("a run that is measured has no forks")
    (tmp_path / "probe.py").write_text(PROBE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLWHEEL_TOKEN", "of this test")
    command = ("topology", "graph", "probe.py:probe")
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
    for one in said:
        del one["handlers"]["SIGINT"]  # a run in the background ignores it, and so does a new process of it
    assert said[0] == said[1]
    assert said[0]["environment"]["MILLWHEEL_TOKEN"] == "of this test"


@pytest.mark.parametrize("command", [("topology", "lst"), ("topology", "describe", "x"), ("topology", "--help"), ()])
async def test_a_fork_fails_and_helps_as_a_new_process(command: tuple[str, ...]) -> None:
    assert await run_cli("127.0.0.1:1", *command) == await run_cli("127.0.0.1:1", *command, new=True)


async def test_a_fork_that_is_given_up_is_killed(tmp_path: Path) -> None:
    program, number = tmp_path / "sleeping.py", tmp_path / "number"
    program.write_text(f"import os, time\nopen({str(number)!r}, 'w').write(f'{{os.getpid()}}.')\ntime.sleep(600)")
    running = asyncio.create_task(run_cli("", "topology", "graph", f"{program}:probe"))
    await until(lambda: number.exists() and number.read_text().endswith("."))
    process = Path("/proc") / number.read_text().rstrip(".")
    assert process.exists()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
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


def test_other_variables_than_those_of_the_run_prevent_a_fork() -> None:
    known = os.environ | OWN
    if not any(name.startswith("COVERAGE_") for name in known):
        assert forking.fits({**known, "MILLWHEEL_ADDRESS": "x"})
    for name, text in (("COLUMNS", "80"), ("PYTHONHASHSEED", "0"), ("ONLY_HERE", "1"), ("COVERAGE_RUN", "1")):
        assert not forking.fits({**known, name: text})
