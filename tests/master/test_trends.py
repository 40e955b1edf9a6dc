"""Whether a backlog becomes less, by the wait of its oldest work."""

from __future__ import annotations

import pytest

from millwheel.master.trends import Pace, Trend, time_left
from millwheel.model.time import Timestamp, seconds


def trend(come: float, taken: float, *, begin: float = 120.0, until: int = 120, every: int = 2) -> Trend:
    """Reports of an interval whose oldest work has waited for ``begin`` seconds at first."""
    found = Trend()
    for second in range(0, until + 1, every):
        found.add(Timestamp(seconds(second)), begin + second * (1 - taken / come), taken)
    return found


def test_what_comes_follows_from_the_wait_of_the_oldest_work() -> None:
    pace = trend(15.0, 13.0).pace()
    assert pace is not None
    assert (pace.come, pace.taken) == pytest.approx((15.0, 13.0))
    assert pace.left is None, "its wait grows"


def test_it_catches_up_when_the_wait_falls() -> None:
    pace = trend(15.0, 30.0).pace()
    assert pace is not None
    assert (pace.come, pace.waited, pace.left) == pytest.approx((15.0, 0.0, 0.0))
    pace = trend(15.0, 30.0, until=60).pace()
    assert pace is not None
    assert pace.left == pytest.approx(60.0), "one minute of its wait is left, and a second less each second"


def test_a_wait_that_hardly_falls_does_not_end() -> None:
    pace = trend(100.0, 101.0).pace()
    assert pace is not None
    assert pace.left is None


def test_one_record_that_stays_does_not_say_what_comes() -> None:
    pace = trend(1e9, 13.0).pace()
    assert pace is not None
    assert (pace.come, pace.left) == (None, None)


def test_what_the_owner_says_of_arrivals_counts_first() -> None:
    """Regression: more came two minutes ago than now. The wait of the oldest record still grew, and the queue ended."""
    history = trend(25.0, 19.0)
    pace = history.pace(2.0, 1_700)
    assert pace is not None
    assert (pace.come, pace.left) == pytest.approx((2.0, 100.0))
    surge = trend(15.0, 19.0).pace(25.0, 1_700)
    assert surge is not None
    assert (surge.come, surge.left) == (25.0, None), "more come now than are taken"
    stuck = trend(1e9, 19.0).pace(2.0, 1_700)
    assert stuck is not None
    assert stuck.left is None, "one record stays, so it does not catch up"


def test_a_few_seconds_are_too_short_for_a_judgement() -> None:
    assert Trend().pace() is None
    assert trend(15.0, 13.0, until=19).pace() is None
    assert trend(15.0, 13.0, until=24).pace() is not None


def test_only_the_last_minute_counts() -> None:
    found = trend(15.0, 13.0)
    for second in range(125, 200, 5):
        found.add(Timestamp(seconds(second)), 100.0 - second / 10, 16.5)
    pace = found.pace()
    assert pace is not None
    assert (pace.growth, pace.taken) == pytest.approx((-0.1, 16.5))


def test_several_intervals_have_caught_up_when_the_last_has() -> None:
    first, second, never = Pace(60.0, 10.0, -0.5), Pace(60.0, 10.0, -0.1), Pace(60.0, 10.0, 0.1)
    assert time_left([first, second]) == pytest.approx(600.0)
    assert time_left([first, never]) is None
    assert time_left([]) is None
