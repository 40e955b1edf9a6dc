"""Anomaly scoring with scikit-learn: a model that was fitted before scores the readings of machines, minute by minute.

``collect`` gives the function a whole minute of a machine, so one call of the model scores all of its readings. Real
programs load a model that was saved to a file (``--include``). This one fits it, once in each process of a worker.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import numpy as np
from sklearn.ensemble import IsolationForest

import millwheel as mw
from millwheel import agg, windows

__all__ = ["Minute", "Reading", "Score", "machines", "model"]


class Reading(msgspec.Struct, frozen=True, order=True):
    machine: str
    temperature: float
    vibration: float


class Minute(msgspec.Struct, frozen=True):
    machine: str
    readings: list[Reading]


class Score(msgspec.Struct, frozen=True):
    """``score``: below 0, the reading is unlike those of machines that are well."""

    reading: Reading
    score: float


@cache
def model() -> Any:
    well = np.random.default_rng(7).normal((60.0, 2.0), (2.0, 0.2), (2_000, 2))
    return IsolationForest(n_estimators=50, contamination=0.01, random_state=7).fit(well)


def score(minute: Minute) -> list[Score]:
    rows = np.array([(one.temperature, one.vibration) for one in minute.readings])
    return [Score(*one) for one in zip(minute.readings, model().decision_function(rows).tolist(), strict=True)]


machines = mw.Topology("machines")
minutes = machines.source("readings", Reading).key_by("machine").window(windows.tumbling(mw.minutes(1)))
scores = minutes.aggregate("minutes", Minute, readings=agg.collect()).flat_map(score, Score)
scores.filter(lambda one: one.score < 0).named("alarms")
