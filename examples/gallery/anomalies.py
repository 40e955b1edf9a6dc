"""Anomaly scoring: how far a reading is from what its sensor has measured in the last hour.

Sliding windows give the mean and the variance of an hour, each five minutes. ``join_as_of`` gives each reading the
newest statistics before it. So a reading is never compared with itself, and the score depends on the timestamps alone.
"""

from __future__ import annotations

from math import sqrt

import msgspec

import millwheel as mw
from millwheel import agg, windows

__all__ = ["Reading", "Score", "Stats", "anomalies"]


class Reading(msgspec.Struct, frozen=True):
    """A sensor measures something."""

    sensor: str
    value: float


class Stats(msgspec.Struct, frozen=True):
    """What a sensor has measured in an hour."""

    sensor: str
    end: mw.Timestamp
    n: int
    mean: float
    variance: float


class Score(msgspec.Struct, frozen=True):
    """A reading, and by how many standard deviations it is away from the mean."""

    reading: Reading
    score: float


def score(reading: Reading, stats: Stats) -> Score:
    return Score(reading, (reading.value - stats.mean) / sqrt(stats.variance) if stats.variance else 0.0)


anomalies = mw.Topology("anomalies")
readings = anomalies.source("readings", Reading).key_by("sensor")
hours = readings.window(windows.sliding(mw.hours(1), mw.minutes(5)))
stats = hours.aggregate("stats", Stats, n=agg.count(), mean=agg.mean("value"), variance=agg.variance("value"))
enough = stats.filter(lambda one: one.n >= 20).key_by("sensor")
scores = readings.join_as_of("scores", enough, score, Score)
scores.filter(lambda one: abs(one.score) > 4).named("anomalies")
