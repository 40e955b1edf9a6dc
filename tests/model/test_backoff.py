"""The back-off doubles to its largest step, and the chance only shortens it, by at most a half."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.model.backoff import Backoff, jittered

CHANCES = st.floats(0.0, 1.0)


def test_it_doubles_from_the_first_to_the_largest_step() -> None:
    backoff = Backoff(0.1, 1.0)
    assert [backoff.delay(n, 1.0) for n in (1, 2, 3, 9, 999)] == [0.1, 0.2, 0.4, 1.0, 1.0]
    assert backoff.delay(3, 0.0) == 0.2
    assert Backoff(20_000, 1_000_000).step(3) == 80_000, "any unit, such as microseconds"


@given(st.floats(0.001, 1e6), st.floats(0.001, 1e6), st.integers(0, 10**9), CHANCES)
def test_no_delay_is_shorter_than_half_of_its_step(first: float, largest: float, failures: int, chance: float) -> None:
    backoff = Backoff(first, largest)
    step = min(largest, first * 2.0 ** max(0, min(failures - 1, 60)))
    assert backoff.step(failures) == pytest.approx(step)
    assert backoff.step(failures) <= backoff.step(failures + 1)
    assert step / 2 * 0.999 <= backoff.delay(failures, chance) <= step * 1.001


@given(CHANCES, CHANCES)
def test_the_chance_spreads_attempts_over_the_second_half(one: float, other: float) -> None:
    assert (jittered(8.0, one) <= jittered(8.0, other)) == (one <= other) or abs(one - other) < 1e-9
    assert (jittered(8.0, 0.0), jittered(8.0, 1.0)) == (4.0, 8.0)
