"""The model of a stage with many workers, against what is known of queues."""

from __future__ import annotations

from statistics import mean

import pytest

from bench.scale.model import ServiceTimes, simulate

CONSTANT = [(0.0, 5.0), (1.0, 5.0)]
IDLE = 0.001
"""Workers that are so little busy that nothing waits."""


def test_idle_workers_add_only_what_was_measured() -> None:
    taken = simulate(50, 1_000, ServiceTimes(1.0, CONSTANT, 0.5), IDLE, 5_000)
    assert mean(taken) == pytest.approx(0.7 + 2 * 5.0 + 2 * 0.5, rel=0.02)
    assert taken[0] >= 11.0


def test_without_appends_there_are_only_hops_and_cpu() -> None:
    taken = simulate(50, 1_000, ServiceTimes(1.0, [], 0.5), IDLE, 5_000)
    assert mean(taken) == pytest.approx(0.7 + 2 * 0.5, rel=0.03)


def test_busy_workers_make_records_wait() -> None:
    times = ServiceTimes(1.0, CONSTANT, 0.0)
    calm, half, busy = (mean(simulate(20, 100, times, share, 10_000)) for share in (0.1, 0.5, 0.9))
    assert calm < half < busy


def test_what_waits_for_an_interval_shares_its_next_append() -> None:
    """An interval has one append in flight. So a record waits for at most one append before its own."""
    taken = simulate(1, 1, ServiceTimes(0.01, CONSTANT, 0.0), 0.5, 2_000)
    assert taken[-1] < 2 * 2 * 5.0 + 1.0


def test_a_simulation_is_repeatable_and_counts_warm_records() -> None:
    times = ServiceTimes(1.0, CONSTANT, 0.1)
    assert simulate(5, 10, times, 0.5, 1_000, seed=7) == simulate(5, 10, times, 0.5, 1_000, seed=7)
    assert len(simulate(5, 10, times, 0.5, 1_000)) == 800
