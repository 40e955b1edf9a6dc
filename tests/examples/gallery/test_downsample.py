"""A minute of a device is one row."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from statistics import fmean

import pytest

import millwheel as mw
from examples.gallery.downsample import Minute, Reading, downsample
from tests.examples.gallery.playing import at, play


def test_a_minute_is_one_row() -> None:
    chance = Random(8)
    readings = [
        (Reading(device, chance.choice([999.0, *(chance.gauss(20, 5) for _ in range(9))])), at(second))
        for device in ("attic", "hall", "oven")
        for second in range(0, 300, 3)
    ]
    minutes = defaultdict[tuple[str, int], list[float]](list)
    for reading, time in readings:
        if reading.celsius < 60:
            minutes[reading.device, time - time % mw.minutes(1)].append(reading.celsius)
    expected = [
        Minute(device, mw.Timestamp(start), len(values), fmean(values), min(values), max(values))
        for (device, start), values in sorted(minutes.items())
    ]
    found = play(downsample, [("readings", *one) for one in readings]).values("minutes")
    found.sort(key=lambda one: (one.device, one.start))
    assert len(expected) == 15
    for row, minute in zip(found, expected, strict=True):
        # The last digits of a mean depend on the order of the readings.
        assert row.mean == pytest.approx(minute.mean)
        assert (row.device, row.start, row.readings, row.low, row.high) == (
            *(minute.device, minute.start, minute.readings),
            *(minute.low, minute.high),
        )
