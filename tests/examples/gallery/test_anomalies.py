"""A reading is compared with the hour before it."""

from __future__ import annotations

from random import Random
from statistics import fmean, pvariance

import pytest

import millwheel as mw
from examples.gallery.anomalies import Reading, anomalies
from tests.examples.gallery.playing import at, play

HOUR, STEP = mw.hours(1), mw.minutes(5)


def expected(readings: list[tuple[Reading, mw.Timestamp]]) -> dict[str, float]:
    """By sensor and value: the score of each reading that has enough of them before it."""
    found = dict[str, float]()
    for reading, time in readings:
        # The newest window of this sensor that has ended and has any readings.
        own = [(one.value, when) for one, when in readings if one.sensor == reading.sensor]
        end = time - time % STEP
        while end > at(0):
            values = [value for value, when in own if end - HOUR <= when < end]
            if len(values) >= 20:
                found[repr(reading)] = (reading.value - fmean(values)) / pvariance(values) ** 0.5
                break
            end -= STEP
    return found


def test_a_reading_is_compared_with_the_hour_before_it() -> None:
    chance = Random(13)
    readings = [
        (Reading(sensor, chance.gauss(100, 3) + 40 * (second % 4_000 == 3_960)), at(second))
        for sensor in ("a", "e", "x")
        for second in range(0, 16_000, 120)
    ]
    harness = play(anomalies, [("readings", *one) for one in readings])
    scores = expected(readings)
    found = {repr(one.reading): one.score for one in harness.values("scores")}
    assert found == {name: pytest.approx(score, rel=1e-6) for name, score in scores.items()}
    assert len(scores) > 250
    alarms = [repr(one.reading) for one in harness.values("anomalies")]
    assert sorted(alarms) == sorted(name for name, score in scores.items() if abs(score) > 4)
    assert len(alarms) > 5
