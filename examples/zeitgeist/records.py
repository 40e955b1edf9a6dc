"""The records of the example's streams. Times are microseconds since the epoch.

Windows are in New York's local time.
"""

from __future__ import annotations

import msgspec

__all__ = ["Anomaly", "DelayModel", "Departure", "TrafficModel", "WindowCount"]


class Departure(msgspec.Struct, frozen=True):
    """A flight that has left. The record's timestamp is its scheduled departure."""

    origin: str
    """One of the three airports, such as ``JFK``."""
    city: str
    dest: str
    carrier: str
    flight: int
    delay: int
    """Minutes between the scheduled and the actual departure. Negative if the flight left early."""


class WindowCount(msgspec.Struct, frozen=True):
    """The departures from an airport in one local hour, complete. The record's timestamp is the hour's end."""

    airport: str
    city: str
    slot: str
    """The weekday and the hour, such as ``Fri 17``. The traffic of a slot is similar from week to week."""
    start: int
    end: int
    departures: int
    delay: int
    """The minutes of delay of these departures. Early departures count as 0."""


class TrafficModel(msgspec.Struct, frozen=True):
    """The usual number of departures from an airport in the windows of ``slot`` that begin at ``until`` or later."""

    airport: str
    slot: str
    until: int
    """The end of the last window that the model has learned from."""
    expected: int


class DelayModel(msgspec.Struct, frozen=True):
    """The limit of a city's minutes of delay in the local day beginning at ``day``. It is above all recent days."""

    city: str
    day: int
    limit: int


class Anomaly(msgspec.Struct, frozen=True, order=True):
    """A dip or a spike. It contains only what the data determines, nothing about the time or order of arrival."""

    start: int
    """The start of the window: a local hour for a dip, a local day for a spike."""
    end: int
    kind: str
    """``dip`` or ``spike``."""
    subject: str
    """The airport of a dip, or the city of a spike."""
    expected: int
    """For a dip: the usual number of departures. For a spike: the limit of minutes of delay that was passed."""
    observed: int = 0
    """For a dip: the departures of the window. 0 for a spike, because its window may still be open."""
    hours: int = 0
    """For a dip: the number of consecutive windows with low traffic so far."""
