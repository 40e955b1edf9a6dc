"""Takeovers after internal errors have growing delays and a limit."""

from __future__ import annotations

import pytest

from millwheel.worker.process.internal_errors import RESTART_BACKOFF, InternalErrors
from tests.kept import kept


def test_takeovers_are_spaced_out_and_bounded() -> None:
    errors = InternalErrors()
    now, delays = 0.0, []
    while (count := errors.fault("c.1.j1", now)) is not None:
        delays.append(RESTART_BACKOFF.step(count))
        now += delays[-1] + 0.1
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert errors.fault("c.1.j1", now + 1) is None
    assert errors.fault("d.1.j1", now) == 1, "another interval's errors are its own"


def test_an_interval_healthy_for_long_resets_its_back_off() -> None:
    errors = InternalErrors()
    assert [errors.fault("j", at) for at in (0, 10, 20)] == [1, 2, 3]
    assert errors.fault("j", 20 + 601) == 1


@pytest.mark.guarantee("G13")
def test_errors_of_long_ago_are_forgotten() -> None:
    errors = InternalErrors()
    for number in range(1_000):
        errors.fault(f"c.1.j{number}", 10.0 * number)
    assert sum(one.startswith("c.1.j") for one in kept(errors, str)) <= 61
