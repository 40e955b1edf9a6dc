"""A slice of the hostile input of ``make fuzz``, which has the rest."""

from __future__ import annotations

import pytest

from tests.fuzz.calls import methods
from tests.fuzz.runner import SURFACES, run

CASES = {
    "dev-server": 700,
    "daemons": 500,
    "settings": 100,
    "packages": 150,
    "stored": 400,
    "contents": 1_000,
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("surface", sorted(CASES))
async def test_hostile_input_is_answered_clearly_and_does_no_harm(surface: str) -> None:
    (tally,) = await run([surface], CASES[surface], seed=1)
    assert tally.unclear == []
    assert tally.cases == CASES[surface]
    assert len(tally.statuses) > 1, "cases that all end alike test nothing"
    assert tally.slowest < 10


def test_every_method_and_every_surface_is_among_the_cases() -> None:
    assert {"/millwheel.v1.DeliveryService/Deliver", "/millwheel.v1.ClusterService/GetClusterHealth"} <= {
        method.path for method in methods()
    }
    assert SURFACES.keys() == CASES.keys()
