"""In our processes, gRPC's messages pass through no threads of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from millwheel.rpc import polling
from tests.patience import patience

_CALLS: Final = 300

_PROGRAM: Final = f"""
import asyncio, os, sys, time
import millwheel.cli.main as entry
assert "grpc" not in sys.modules, "the command line must not import gRPC before its way of polling is set"
entry.poll_without_threads()
import grpc
from tests.patience import patience

def woken():
    found = 0
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{{task}}/status") as file:
            lines = dict(line.split(":", 1) for line in file)
        if lines["Name"].strip() == "event_engine":
            found += int(lines["voluntary_ctxt_switches"])
    return found

async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{{port}}") as channel:
        before, begin = woken(), time.monotonic()
        for _ in range({_CALLS}):
            try:
                await channel.unary_unary("/a/b")(b"x", timeout=patience(10))
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        called = woken() - before
        # The threads also wake by themselves now and then: as often in the same time without calls.
        await asyncio.sleep(time.monotonic() - begin)
    print(called - (woken() - before - called))
    await server.stop(0)

asyncio.run(main())
"""


def _woken(**environment: str) -> int:
    """How often calls woke threads of gRPC's event engine in a process of ours."""
    clean = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=patience(60),
    )
    assert ran.returncode == 0, ran.stderr
    assert "Unknown experiment" not in ran.stderr
    return int(ran.stdout)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are distinguished by /proc")
def test_calls_wake_no_grpc_threads_unless_the_environment_asks() -> None:
    assert _woken() < _CALLS / 2
    assert _woken(GRPC_EXPERIMENTS="event_engine_client") > _CALLS


def test_a_process_that_has_imported_grpc_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRPC_EXPERIMENTS", raising=False)
    assert "grpc" in sys.modules or __import__("grpc")
    polling.poll_without_threads()
    assert "GRPC_EXPERIMENTS" not in os.environ


def test_a_release_that_may_not_know_the_switch_is_not_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "modules", {name: one for name, one in sys.modules.items() if name != "grpc"})
    for release, shown in (("1.85.1", True), ("1.86.0", False), ("2.0.0rc1", False)):
        monkeypatch.setenv("GRPC_EXPERIMENTS", "")
        monkeypatch.delenv("GRPC_EXPERIMENTS")
        monkeypatch.setattr(polling, "version", lambda _, release=release: release)
        polling.poll_without_threads()
        assert ("GRPC_EXPERIMENTS" in os.environ) is shown
