"""Seeds get to what they are there for: whoever changes the simulator, or the product, finds other ones if need be."""

from __future__ import annotations

import pytest

from simulation.replaying import run_module


@pytest.mark.parametrize(
    ("seed", "told"),
    [
        pytest.param(
            49, [f"done for the load's sake: {what} of" for what in ("move", "split", "merge")], id="balancing"
        ),
    ],
)
def test_a_seed_reaches(seed: int, told: list[str]) -> None:
    """What is to happen is in its history, and it holds."""
    done = run_module("simulation", "--seeds", "1", "--seed", str(seed), "--history")
    assert done.returncode == 0, done.stdout[-20_000:]
    assert [one for one in told if one not in done.stdout] == []
