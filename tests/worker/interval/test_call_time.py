"""How many records the next call of a hook for many records gets (section 4.1; G8)."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.worker.interval.call_time import CallTime

LIMIT, MOST = 0.01, 1_024


@pytest.mark.guarantee("G8", section="4.1")
@given(
    st.floats(0.0, 1.0),
    st.floats(0.0, 0.1),
    st.lists(st.tuples(st.floats(1e-6, 10.0), st.integers(2, MOST)), max_size=9),
)
def test_calls_take_the_time_that_they_should(fixed: float, of_row: float, before: list[tuple[float, int]]) -> None:
    """After any calls, others that cost the same each time soon get the rows that fit, and not many more."""
    time = CallTime()
    for seconds, rows in before:
        time.ran(min(rows, time.fitting(LIMIT, MOST)), seconds, LIMIT)
    taken: list[float] = []
    rows = 0
    for _ in range(60):
        rows = time.fitting(LIMIT, MOST)
        assert 1 <= rows <= MOST
        taken.append(fixed + of_row * rows)
        time.ran(rows, taken[-1], LIMIT)
    # Two rows in any case. A call that grows has twice the rows of the one before.
    allowed = max(LIMIT, 2 * fixed, fixed + 2 * of_row)
    assert max(taken[-10:]) <= 2.1 * allowed
    if of_row * MOST < fixed / 4:
        assert rows == MOST


def test_a_call_that_failed_has_halves_behind_it() -> None:
    time = CallTime()
    assert time.fitting(inf, MOST) == MOST
    time.failed(MOST)
    assert time.fitting(inf, MOST) == 512
    time.failed(3)
    assert time.fitting(inf, MOST) == 1
    for rows in (1, 2, 4):
        time.returned(rows, MOST)
        assert time.fitting(inf, MOST) == 2 * rows
    time.returned(MOST // 2, MOST)
    assert time.trial == 0
