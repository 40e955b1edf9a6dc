"""A model that was fitted before scores the readings of machines."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from examples.gallery.machines import Reading, machines, model
from tests.examples.gallery.playing import at, play


def test_readings_that_are_unlike_others_raise_alarms() -> None:
    chance = Random(5)
    readings = [
        (Reading(machine, chance.gauss(60, 2), chance.gauss(2, 0.2) + 3 * (chance.random() < 0.05)), at(second))
        for machine in ("a", "e", "x")
        for second in chance.sample(range(600), 100)
    ]
    harness = play(machines, [("readings", *one) for one in readings])
    rows = np.array([(one.temperature, one.vibration) for one, _ in readings])
    scores = {one: score for (one, _), score in zip(readings, model().decision_function(rows), strict=True)}
    found = {one.reading: one.score for one in harness.values("alarms")}
    assert found == {one: pytest.approx(score) for one, score in scores.items() if score < 0}
    shaking = {one for one, _ in readings if one.vibration > 4}
    assert len(shaking) > 5
    assert shaking <= found.keys()
    assert len(found) < len(shaking) + 15, "a machine that is well raises few alarms"
