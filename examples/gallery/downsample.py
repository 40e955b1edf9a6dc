"""IoT down-sampling: one row for each device and minute, in place of a reading each second.

Several aggregates of the same readings are computed at once. A row is of the program's own class: its fields are filled
by their names, from the key, from the window and from the aggregates.
"""

from __future__ import annotations

import msgspec

import millwheel as mw
from millwheel import agg, windows

__all__ = ["Minute", "Reading", "downsample"]


class Reading(msgspec.Struct, frozen=True):
    """A device measures a temperature."""

    device: str
    celsius: float


class Minute(msgspec.Struct, frozen=True):
    """The readings of a device in a minute."""

    device: str
    start: mw.Timestamp
    readings: int
    mean: float
    low: float
    high: float


downsample = mw.Topology("downsample")
readings = downsample.source("readings", Reading).filter(lambda one: -90 < one.celsius < 60)
readings.key_by("device").window(windows.tumbling(mw.minutes(1))).aggregate(
    "minutes",
    Minute,
    readings=agg.count(),
    mean=agg.mean("celsius"),
    low=agg.min("celsius"),
    high=agg.max("celsius"),
)
