"""How many records the next call of a hook for many records gets (section 4.1; G8)."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.worker.interval.call_time import CallTime, CallTrial

LIMIT = 0.1


@pytest.mark.guarantee("G8", section="4.1")
@given(
    st.floats(0.0, 3.0),
    st.floats(0.0, 0.2),
    st.floats(1.0, 3.0),
    st.sampled_from([0.01, LIMIT, 2.0]),
    st.lists(st.tuples(st.integers(1, 9_000), st.floats(0.0, 1.0)), min_size=40, max_size=60),
)
def test_a_call_has_at_most_twice_the_rows_of_a_quick_one(
    fixed: float, of_row: float, noise: float, limit: float, calls: list[tuple[int, float]]
) -> None:
    """Whatever calls cost: a fixed time, a time for each row, or either with noise."""
    time, quick = CallTime(limit), 1
    for given_rows, luck in calls:
        before, rows = time.rows, min(given_rows, time.rows)
        assert before >= 2
        seconds = (fixed + of_row * rows) * noise**luck
        allowed = limit if before >= 32 else max(limit, 1.0)
        if seconds <= allowed / 2:
            quick = max(quick, rows)
        time.ran(rows, seconds)
        assert time.rows <= max(before, 2 * rows)
        assert time.rows <= max(2, 2 * quick)
        if seconds > max(limit, 1.0):
            assert time.rows <= max(2, before // 2)


@pytest.mark.guarantee("G8", section="4.1")
@given(st.floats(0.0, 3.0), st.floats(0.0, 0.2), st.floats(1.0, 1.9), st.lists(st.floats(0.0, 1.0), min_size=25))
def test_calls_end_in_about_their_time(fixed: float, of_row: float, noise: float, luck: list[float]) -> None:
    time, taken = CallTime(LIMIT), 0.0
    for chance in luck:
        rows = min(1_024, time.rows)
        taken = (fixed + of_row * rows) * noise**chance
        time.ran(rows, taken)
    least = (fixed + 2 * of_row) * noise
    assert taken <= max(2 * LIMIT, 2.0, least) * noise
    if noise * (fixed + 1_024 * of_row) <= LIMIT / 2:
        assert time.rows >= 1_024
    if noise * (fixed + 32 * of_row) <= 0.5:
        assert time.rows >= 32


def test_without_a_limit_any_number_of_rows_may_come() -> None:
    time = CallTime(inf)
    time.ran(9_000, 3_600.0)
    assert time.rows > 1 << 31


def test_a_call_that_failed_has_halves_behind_it() -> None:
    trial = CallTrial()
    assert trial.rows == 0
    trial.failed(1_000, 1_400)
    trial.failed(500, 500)
    assert trial.rows == 250
    trial.failed(3, 3)
    assert trial.rows == 1
    trial.ran(1, False)
    assert trial.rows == 1
    for rows in (1, 2, 4):
        trial.ran(rows, True)
        assert trial.rows == 2 * rows
    trial.ran(1_391, True)
    assert trial.rows > 0
    trial.ran(1, True)
    assert trial.rows == 0
