"""Takeovers after internal errors are spaced out, and end some time."""

from __future__ import annotations

from millwheel.worker.shell.restart_backoff import RestartBackoff


def test_takeovers_are_spaced_out_and_bounded() -> None:
    mending = RestartBackoff()
    now, delays = 0.0, []
    while (delay := mending.fault("c.1.j1", now)) is not None:
        delays.append(delay)
        now += delay + 0.1
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert mending.fault("c.1.j1", now + 1) is None
    assert mending.fault("d.1.j1", now) == 1, "another interval's errors are its own"


def test_an_interval_that_was_well_for_long_begins_anew() -> None:
    mending = RestartBackoff()
    assert [mending.fault("j", at) for at in (0, 10, 20)] == [1, 2, 4]
    assert mending.fault("j", 20 + 601) == 1


def test_g13_errors_of_long_ago_are_forgotten() -> None:
    mending = RestartBackoff()
    for number in range(1_000):
        mending.fault(f"c.1.j{number}", 10.0 * number)
    assert len(mending._faults) <= 61
