"""A process that does not get to run is measured as such, and its own work is not."""

from __future__ import annotations

import pytest

from millwheel.model.stalls import StallMeter

PERIOD = 0.25


def test_a_thread_that_wakes_in_time_is_not_stalled() -> None:
    meter = StallMeter(PERIOD, 0.0, 0.0)
    assert [meter.woken(number * 0.26, number * 0.01) for number in range(1, 40)] == [0.0] * 39
    assert (meter.total, meter.share(10.4), meter.longest(10.4)) == (0.0, 0.0, 0.0)


def test_a_pause_is_a_stall() -> None:
    meter = StallMeter(PERIOD, 0.0, 0.0)
    assert meter.woken(4.25, 0.0) == pytest.approx(4.0)
    assert meter.total == pytest.approx(4.0)
    assert meter.longest(5.0) == pytest.approx(4.0)


def test_a_call_that_uses_the_cpu_is_not_a_stall() -> None:
    meter = StallMeter(PERIOD, 0.0, 0.0)
    assert meter.woken(4.25, 4.0) == 0.0


def test_the_share_is_that_of_the_last_ten_seconds() -> None:
    meter = StallMeter(PERIOD, 0.0, 0.0)
    now = 0.0
    for _ in range(20):  # 2 s of each 2.5 s
        now += 2.25
        meter.woken(now, 0.0)
        now += PERIOD
        meter.woken(now, 0.0)
    assert meter.share(now) == pytest.approx(0.8)
    assert meter.share(now + 5.0) == pytest.approx(0.4, abs=0.01)
    assert meter.share(now + 10.0) == 0.0
    assert meter.total == pytest.approx(40.0)


def test_a_stall_longer_than_the_window_is_all_of_it() -> None:
    meter = StallMeter(PERIOD, 0.0, 0.0)
    meter.woken(60.0, 0.0)
    assert meter.share(60.0) == 1.0


def test_the_longest_stall_is_forgotten_after_a_minute() -> None:
    meter = StallMeter(PERIOD, 0.0, 0.0)
    meter.woken(4.25, 0.0)
    assert meter.longest(64.0) == pytest.approx(4.0)
    assert meter.longest(64.5) == 0.0
