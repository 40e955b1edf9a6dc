"""Whether a backlog becomes less, by the wait of its oldest work."""

from __future__ import annotations

import pytest

from millwheel.master.trends import Pace, Trend, time_left
from millwheel.model.time import Timestamp, seconds


def trend(come: float, taken: float, *, begin: float = 120.0, until: int = 120, queued: int = 0) -> Trend:
    """Reports of an interval whose oldest work has waited for ``begin`` seconds, and where ``queued`` wait."""
    found = Trend()
    for second in range(0, until + 1, 2):
        found.add(Timestamp(seconds(second)), begin + second * (1 - taken / come), taken, queued)
    return found


def test_what_comes_follows_from_the_wait_of_the_oldest_work() -> None:
    pace = trend(15.0, 13.0).pace()
    assert pace is not None
    assert (pace.come, pace.taken) == pytest.approx((15.0, 13.0))
    assert (pace.left, pace.grows) == (None, True), "its wait grows"


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
    assert (pace.left, pace.grows) == (None, False), "both figures are about the same"


def test_one_record_that_stays_does_not_say_what_comes() -> None:
    pace = trend(1e9, 13.0).pace()
    assert pace is not None
    assert (pace.come, pace.left, pace.grows) == (None, None, False)


def test_what_the_owner_says_of_arrivals_counts_first() -> None:
    """Regression: more came two minutes ago than now. The wait of the oldest record still grew, and the queue ended."""
    history = trend(25.0, 19.0, queued=1_800)
    pace = history.pace(2.0, 1_700)
    assert pace is not None
    assert (pace.come, pace.left) == pytest.approx((2.0, 100.0))
    surge = trend(15.0, 19.0, queued=1_800).pace(25.0, 1_700)
    assert surge is not None
    assert (surge.come, surge.left, surge.grows) == (25.0, None, False), "more come now than are taken: it is not clear"
    stuck = trend(1e9, 19.0, queued=1_700).pace(2.0, 1_700)
    assert stuck is not None
    assert (stuck.left, stuck.grows) == (None, False), "one record stays, and no fewer wait"


def test_what_the_senders_keep_waits_too() -> None:
    """Regression: the owner's queue was full, and its end was called that of the backlog."""
    pace = trend(80.0, 100.0, begin=600.0, until=60, queued=6_400).pace(80.0, 6_400)
    assert pace is not None
    assert pace.left == pytest.approx((600 - 60 * 0.25) * 80 / 20)


def test_a_delivery_that_is_worked_off_is_progress() -> None:
    """Regression: the wait grew as long as records of one moment were worked off, and seemed to grow for ever."""
    pace = trend(1e9, 13.0, begin=90.0, until=60, queued=3_000).pace(0.0, 2_220)
    assert pace is not None
    assert pace.left == pytest.approx(2_220 / 13)
    assert not pace.grows


def test_a_wait_that_falls_is_not_called_growing() -> None:
    """What comes from several senders may seem as much as is taken, while their backlog becomes less."""
    pace = trend(60.0, 100.0, begin=600.0, until=60, queued=6_400).pace(104.0, 6_400)
    assert pace is not None
    assert (pace.left, pace.grows) == (None, False)


def test_a_full_owner_falls_behind_though_all_it_gets_is_taken() -> None:
    pace = trend(125.0, 100.0, until=60, queued=6_400).pace(100.0, 6_400)
    assert pace is not None
    assert (pace.left, pace.grows) == (None, True)
    stays = trend(1e9, 100.0, until=60, queued=10).pace(100.0, 10)
    assert stays is not None
    assert not stays.grows, "it may be one record"


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
