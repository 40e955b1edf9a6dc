"""The whole cluster in virtual time, from seeds: every guarantee at once, under faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.replaying import run_module
from tests.house.tree import ROOT

SEEDS = range(50, 250)
"""Few enough for every run of the tests. tests/simulation/test_reach.py sees that they reach every option of a plan."""


def simulate(*arguments: str, root: Path = ROOT) -> str:
    """The output of ``python -m simulation``. A failing run shows its history."""
    done = run_module("simulation", *arguments, root=root)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4_000:]
    return done.stdout


@pytest.mark.guarantee("G1", "G2", "G3", "G4", "G5", "G6", "G7", "G8", "G9", "G10", "G11", "G12")
@pytest.mark.timeout(900)
def test_the_guarantees_hold_on_200_seeds() -> None:
    """A seed that fails prints its history, and the command that replays it."""
    assert f"{len(SEEDS)} seeds hold" in simulate("--seeds", str(len(SEEDS)), "--seed", str(SEEDS.start))


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("count", "first"), [(3, (1 << 63) + 12_345), (1, 3_010_020)], ids=["large", "draining"])
def test_a_seed_replays_to_the_same_byte(count: int, first: int) -> None:
    """The other process has other addresses in memory, and other orders of protobuf's maps."""
    runs = [simulate("--seeds", str(count), "--seed", str(first), "--digests") for _ in range(3)]
    digests = [sorted(line for line in run.splitlines() if len(line.split()[-1]) == 64) for run in runs]
    assert len(digests[0]) == count
    assert digests[0] == digests[1] == digests[2]


@pytest.mark.timeout(180)
def test_the_place_of_the_code_does_not_matter(tmp_path: Path) -> None:
    """Regression: dead letters hold tracebacks. Long names of files made batches larger. Seed 71 has such letters."""
    elsewhere = tmp_path / "a-folder-with-a-long-name" / "in-another"
    elsewhere.parent.mkdir()
    elsewhere.symlink_to(ROOT)
    arguments = ("--seeds", "1", "--seed", "71", "--history")
    here, there = simulate(*arguments), simulate(*arguments, root=elsewhere)
    assert "Traceback" in here
    assert [line for line in there.splitlines() if "seeds hold" not in line] == [
        line for line in here.splitlines() if "seeds hold" not in line
    ]
