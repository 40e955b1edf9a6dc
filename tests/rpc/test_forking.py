"""A program that holds a client can start others: a Spark driver starts its Java gateway."""

from __future__ import annotations

import subprocess
import sys

from tests.patience import patience

NUMBER = 40


def test_what_is_forked_beside_calls_runs() -> None:
    command = [sys.executable, "-m", "tests.rpc.forking", str(NUMBER)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False)
    assert shown.stdout.split() == ["0"] * NUMBER, shown.stderr[-2000:]
