"""Child processes of local clusters."""

from __future__ import annotations

import time
from pathlib import Path

from deploy.local.child import ChildProcess
from tests.patience import patience


def _slack(child: ChildProcess) -> int:
    """Nanoseconds, as the kernel says to the child itself."""
    child.start()
    until = time.monotonic() + patience(10)
    while child.is_running and time.monotonic() < until:
        time.sleep(0.01)
    return int(child.log.read_text())


def test_a_child_gets_its_timer_slack_and_the_next_the_usual_one(tmp_path: Path) -> None:
    command = ["cat", "/proc/self/timerslack_ns"]
    usual = _slack(ChildProcess(command, tmp_path / "before"))
    assert _slack(ChildProcess(command, tmp_path / "given", timer_slack=250)) == 250_000
    assert _slack(ChildProcess(command, tmp_path / "after")) == usual
