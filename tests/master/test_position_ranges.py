"""Injectors state complete positions where all receivers understand them (docs/upgrading.md)."""

from __future__ import annotations

import pytest

from millwheel.master.services.routing import routing_of
from millwheel.model.formats import POSITION_RANGES
from tests.master.test_forks import started


@pytest.mark.guarantee("G12", section="6.1.1")
@pytest.mark.parametrize("number", [POSITION_RANGES - 1, POSITION_RANGES])
def test_ranges_wait_for_their_format(number: int) -> None:
    """An earlier version could not take over an interval whose journal has ranges."""
    cluster, _ = started(number)
    assert routing_of(cluster.catalog(), "zeitgeist/queries").position_ranges == (number == POSITION_RANGES)
