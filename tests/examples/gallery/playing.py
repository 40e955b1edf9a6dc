"""Feeds a program of the gallery: in disorder, over several intervals, with a crash in the middle."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import millwheel as mw
from millwheel.testing import TopologyHarness

BEGIN = mw.from_seconds(1_699_999_200)
"""Ten past ten in the evening. It is a bound of ten-minute windows."""

Sent = tuple[str, Any, mw.Timestamp]
"""A stream, a value and its timestamp."""


def at(seconds: float) -> mw.Timestamp:
    """The time that is ``seconds`` after ``BEGIN``."""
    return mw.Timestamp(BEGIN + round(seconds * 1e6))


def play(topology: mw.Topology, records: Iterable[Sent], chunk: int = 20) -> TopologyHarness:
    """Send all records, with each ``chunk`` in random order and then a watermark. Then end the sources."""
    ordered = sorted(records, key=lambda one: one[2])
    harness = TopologyHarness(topology, split_at=["c", "m"])
    chance = Random(1)
    crash = len(ordered) // 2 // chunk * chunk
    for begin in range(0, len(ordered), chunk):
        part = ordered[begin : begin + chunk]
        for number, (stream, value, timestamp) in enumerate(chance.sample(part, len(part))):
            harness.send(stream, value, timestamp)
            if begin == crash and number == len(part) // 2:
                harness.crash()
        harness.advance(part[-1][2])
    harness.finish()
    return harness
