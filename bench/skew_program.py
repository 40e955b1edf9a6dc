"""The topology of ``bench.skew``: counts of each key and minute, of files in the folder ``SKEW_FOLDER``.

``free`` lets a file run ahead of the other one, and ``held`` does so up to two hours.
"""

from __future__ import annotations

import os

import msgspec

import millwheel as mw
from millwheel import agg, connectors, windows

__all__ = ["SKEW", "Reading", "free", "held"]

SKEW = mw.hours(2)
_FOLDER = os.environ.get("SKEW_FOLDER", "/not/set")


class Reading(msgspec.Struct):
    """A line."""

    key: str
    number: int
    at: mw.Timestamp


class Minute(msgspec.Struct):
    """A result."""

    key: str
    start: mw.Timestamp
    n: int
    sum: int


def _counted(name: str, skew: mw.Duration | None) -> mw.Topology:
    topology = mw.Topology(name)
    lines = connectors.read_files(f"{_FOLDER}/*.jsonl", Reading, follow=mw.days(1))
    readings = topology.source("readings", Reading, lines, timestamp="at", allowed_skew=skew)
    minutes = readings.key_by("key").window(windows.tumbling(mw.minutes(1)))
    minutes.aggregate("minutes", Minute, n=agg.count(), sum=agg.sum("number"))
    topology.stream("minutes", Minute, retention=mw.Retention(age=mw.days(1)))
    return topology


free = _counted("free", None)
held = _counted("held", SKEW)
