"""Hostile input: ``make test`` runs a slice of each surface. ``make fuzz`` runs many cases, or one of them again."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from tests.fuzz.calls import methods
from tests.fuzz.runner import SURFACES, run

SLICES = {
    "dev-server": 700,
    "daemons": 500,
    "settings": 100,
    "packages": 150,
    "stored": 400,
    "contents": 1_000,
}
PARTS = {"dev-server": 25, "daemons": 25, "settings": 5, "packages": 3, "stored": 20, "contents": 10}
"""The number of cases of ``make fuzz``, over all surfaces."""

CASES = int(os.environ.get("MILLWHEEL_FUZZ_CASES", "0"))
"""The number of cases in all. 0: a slice of each surface."""
CASE = os.environ.get("MILLWHEEL_FUZZ_CASE", "")
"""The number of the only case to run."""
SEED = int(os.environ.get("MILLWHEEL_SEED", "1"))


def cases_of(surface: str) -> Sequence[int]:
    if CASE:
        return [int(CASE)]
    return range(max(1, CASES * PARTS[surface] // sum(PARTS.values())) if CASES else SLICES[surface])


@pytest.mark.timeout(180 + CASES // 20)
@pytest.mark.parametrize("surface", sorted(SLICES))
async def test_hostile_input_is_answered_clearly_and_does_no_harm(surface: str) -> None:
    cases = cases_of(surface)
    tally = await run(surface, cases, SEED)
    print(f"\n{surface}: {tally}")
    assert tally.unclear == []
    assert tally.statuses.total() == len(cases)
    assert len(tally.statuses) > 1 or len(cases) < 100, "cases that all end alike test nothing"
    assert tally.slowest < 10


def test_every_method_and_every_surface_is_among_the_cases() -> None:
    assert {"/millwheel.v1.DeliveryService/Deliver", "/millwheel.v1.ClusterService/GetClusterHealth"} <= set(methods())
    assert SURFACES.keys() == SLICES.keys() == PARTS.keys()
