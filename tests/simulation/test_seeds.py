"""The whole cluster in virtual time, from seeds: every guarantee at once, under faults."""

from __future__ import annotations

import pytest

from simulation.replaying import run_module


def simulate(*arguments: str) -> str:
    """What ``python -m simulation`` prints; a run that fails shows its history."""
    done = run_module("simulation", *arguments)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4_000:]
    return done.stdout


@pytest.mark.timeout(900)
def test_g1_to_g12_hold_on_300_seeds() -> None:
    """A seed that fails prints its history, and the command that replays it."""
    assert "300 seeds hold" in simulate("--seeds", "300", "--seed", "1")


@pytest.mark.timeout(120)
def test_a_seed_replays_to_the_same_byte() -> None:
    """In another process, with other addresses in memory."""
    seeds = ("--seeds", "3", "--seed", str((1 << 63) + 12_345), "--digests")
    first, second = simulate(*seeds), simulate(*seeds)
    digests = [sorted(line for line in run.splitlines() if len(line.split()[-1]) == 64) for run in (first, second)]
    assert len(digests[0]) == 3
    assert digests[0] == digests[1]
