"""The protocol of all cores: its example runs, and a broken invariant is reported."""

from __future__ import annotations

import doctest

import pytest

from millwheel.model import core_protocol
from millwheel.model.core_protocol import InvariantError, RisingValues, require


def test_the_example_drives_an_interval_by_hand() -> None:
    outcome = doctest.testmod(core_protocol)
    assert outcome.attempted > 10
    assert outcome.failed == 0


def test_a_value_that_falls_is_named() -> None:
    rising = RisingValues()
    rising.check(watermark=3, commit=1)
    rising.check(watermark=3, commit=2)
    with pytest.raises(InvariantError, match="commit never falls: it was 2 and is 1"):
        rising.check(watermark=4, commit=1)


def test_an_invariant_that_does_not_hold_is_named() -> None:
    require(True, "fine")
    with pytest.raises(InvariantError, match="all is well"):
        require(False, "all is well")
