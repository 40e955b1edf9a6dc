"""Each checker of the simulator can fail: the mechanism that gives its guarantee is taken out, and it speaks up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.mutations import MUTATIONS

_ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_mechanism_that_is_taken_out_is_missed(name: str) -> None:
    """By the checker of its guarantee, on the first seed that fails of 60."""
    command = [sys.executable, "-m", "simulation", "--seeds", "60", "--mutation", name]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout[-2_000:] + done.stderr[-2_000:]
    violations = [line for line in done.stdout.splitlines() if "VIOLATION" in line]
    assert any(MUTATIONS[name][1] in line for line in violations), violations[:20]
