"""Each checker of the simulator can fail: the mechanism that gives its guarantee is taken out, and it speaks up.

Here for a few; for all of them, `make test-mutations`.
"""

from __future__ import annotations

import pytest

from simulation.mutations import MUTATIONS
from simulation.mutations.trial import names_of_tests
from simulation.replaying import run_module
from tests.house.test_guarantees import defined_tests


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "name", ["early-timers", "endless", "forgotten-holds", "forgotten-ids", "lost-timers", "no-fence"]
)
def test_a_mechanism_that_is_taken_out_is_missed(name: str) -> None:
    """By the checker of its guarantee, on one of the first two seeds that fail of 60."""
    done = run_module("simulation", "--seeds", "60", "--failures", "2", "--mutation", name)
    assert done.returncode == 1, done.stdout[-2_000:] + done.stderr[-2_000:]
    violations = [line for line in done.stdout.splitlines() if "VIOLATION" in line]
    assert any(f"({MUTATIONS[name].guarantee})" in line for line in violations), violations[:20]


def test_every_mutation_fits_the_product() -> None:
    """What each takes out is there."""
    done = run_module("simulation.mutations", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tests_that_catch_mutations_are_there() -> None:
    """As the trials name them."""
    named = [name.partition("[")[0].split("::", 1) for name in names_of_tests()]
    assert [name for name in named if name[1] not in defined_tests(name[0])] == []
