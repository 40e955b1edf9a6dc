"""What a worker loads at its start, so that it does not load it between records (G8)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.patience import patience

PROGRAM = "import sys; from millwheel.worker.interval import columns_from; columns_from({}); print(*sys.modules)"


@pytest.mark.parametrize("wanted", [True, False])
def test_a_worker_by_columns_loads_pyarrow_at_its_start(wanted: bool) -> None:
    """Loaded with the first table, it would stop all intervals of the worker meanwhile."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(wanted)],
        capture_output=True,
        text=True,
        check=True,
        timeout=patience(30.0),
    )
    assert ("pyarrow" in done.stdout.split()) == wanted
