"""A worker daemon of several processes: which ends of a process it mends, and which end the daemon."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millwheel.cli import roles
from millwheel.cli.main import app
from millwheel.model.backoff import Backoff
from millwheel.server import supervisor
from millwheel.server.supervisor import supervise
from tests.patience import patience, until

SERVE = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(0)); print('up', flush=True); signal.pause()"
"""A process that serves until it is asked to stop."""


def python(code: str) -> Sequence[str]:
    return [sys.executable, "-c", code]


async def test_a_process_that_the_cluster_refuses_ends_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the process was restarted for ever, for example when two daemons had one worker.id."""
    monkeypatch.setattr(supervisor, "RETRY_BACKOFF", Backoff(0.01, 0.01))
    commands = {0: python(SERVE), 1: python("exit(6)")}
    stop = asyncio.Event()
    async with asyncio.timeout(patience(20)):
        assert await supervise(commands.__getitem__, 2, stop, patience(10), {6}) == 6
    assert stop.is_set()


async def test_a_process_that_fails_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RETRY_BACKOFF", Backoff(0.01, 0.01))
    runs, stop = tmp_path / "runs", asyncio.Event()
    once = python(f"open({str(runs)!r}, 'a').write('x'); exit(1)")
    supervising = asyncio.ensure_future(supervise(lambda index: once, 1, stop, patience(10), {6}))
    await until(lambda: runs.exists() and len(runs.read_text()) >= 3)
    stop.set()
    assert await supervising == 0


def test_the_command_exits_with_the_code_of_a_refused_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "own_command", lambda index: python("exit(6)"))
    result = CliRunner().invoke(app, ["worker", "run", "--worker-processes", "2"])
    assert result.exit_code == 6, result.output
