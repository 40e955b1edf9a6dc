"""Each checker of the simulator can fail: it reports the removal of the mechanism behind its guarantee.

These tests remove a few mechanisms. `make test-mutations` removes all of them.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simulation.mutations.trial
from millwheel.testing.connectors import SinkContract, SourceContract
from simulation.forking import run_apart
from simulation.mutations import MUTATIONS
from simulation.mutations.trial import Trials, UnsoundError, names_of_tests
from simulation.replaying import run_module
from simulation.world import World
from tests.house.guarantees import all_tests


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "name",
    [
        "acceptances-forgotten",
        "acks-shown-early",
        "early-timers",
        "endless",
        "forgotten-holds",
        "forgotten-ids",
        "high-marks",
        "lost-timers",
        "no-fence",
    ],
)
def test_a_mechanism_that_is_taken_out_is_missed(name: str) -> None:
    """The checker of its guarantee reports it, on one of the first two failing seeds of 60."""
    done = run_module("simulation", "--seeds", "60", "--failures", "2", "--mutation", name)
    assert done.returncode == 1, done.stdout[-2_000:] + done.stderr[-2_000:]
    assert "\ngo on: make simulate SEEDS=" in done.stdout
    violations = [line for line in done.stdout.splitlines() if "VIOLATION" in line]
    assert any(f"({MUTATIONS[name].guarantee})" in line for line in violations), violations[:20]


def test_a_checker_that_sees_nothing_reports_that(tmp_path: Path) -> None:
    """After a change of the product a checker may have nothing to observe.

    Such a run must not count as one that holds.
    """

    def deafen(world: World) -> None:
        world.broadcasts.clear()
        for listeners in vars(world.taps).values():
            listeners.clear()

    claims = ("append", "takeover", "ACK", "delivery", "acceptance", "restart", "advance", "rise", "publication")
    assert run_apart(2, tmp_path, deafen).violations == [
        "no broadcast was checked",
        "no delivery was checked",
        *(f"no {claim} was compared with the journals" for claim in claims),
    ]


def test_every_mutation_fits_the_product() -> None:
    """The code that each mutation replaces exists."""
    done = run_module("simulation.mutations", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tests_that_catch_mutations_are_there() -> None:
    """Mutations name tests. Each named test exists: in its file, or in the contract that its class inherits."""
    contracts = (SourceContract, SinkContract)
    found = {test.place for test in all_tests()}
    named = {name.partition("[")[0] for name in names_of_tests()}
    inherited = {
        name
        for name in named
        for place, _, test in [name.rpartition("::")]
        if place in found and any(hasattr(contract, test) for contract in contracts)
    }
    assert named - found - inherited == set()


def test_a_mutations_test_decides_where_its_seeds_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other load, seeds reached the time limit, and the test that catches the mutation was not asked."""

    def run(module: str, *arguments: str, seconds: float) -> Any:
        if module == "simulation":
            raise subprocess.TimeoutExpired(module, seconds)
        return subprocess.CompletedProcess(arguments, 1, "E   assert 1 == 2\n", "")

    monkeypatch.setattr(simulation.mutations.trial, "run_module", run)
    mutation = next(one for one in MUTATIONS.values() if one.seeds and one.test)
    caught = Trials().run(mutation)
    assert caught is not None
    assert caught.by == f"{mutation.test}: assert 1 == 2"
    with pytest.raises(UnsoundError, match="takes more than"):
        Trials().run(replace(mutation, test=""))
