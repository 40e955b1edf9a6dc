"""The records of the example's streams. Times are microseconds since the epoch; windows are local to New York."""

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
    """Minutes between the scheduled and the actual departure; negative if it left early."""


class WindowCount(msgspec.Struct, frozen=True):
    """What left an airport in one local hour, complete; the record's timestamp is the hour's end."""

    airport: str
    city: str
    slot: str
    """The weekday and the hour, such as ``Fri 17``: what is alike from week to week."""
    start: int
    end: int
    departures: int
    delay: int
    """The minutes of delay of these departures; early ones count as none."""


class TrafficModel(msgspec.Struct, frozen=True):
    """How many departures are usual for an airport in the windows of ``slot`` that begin at ``until`` or later."""

    airport: str
    slot: str
    until: int
    """The end of the last window that the model has learned from."""
    expected: int


class DelayModel(msgspec.Struct, frozen=True):
    """The minutes of delay in the local day beginning at ``day`` that would be more than the city has seen lately."""

    city: str
    day: int
    limit: int


class Anomaly(msgspec.Struct, frozen=True, order=True):
    """A dip or a spike. It carries what the data says, and nothing of when or in which order that came."""

    start: int
    """The window: a local hour of a dip, a local day of a spike."""
    end: int
    kind: str
    """``dip`` or ``spike``."""
    subject: str
    """The airport that dips, the city that spikes."""
    expected: int
    """Of a dip: the departures that are usual. Of a spike: the minutes of delay that were passed."""
    observed: int = 0
    """Of a dip: the departures of the window. A spike names none: its window may still be open."""
    hours: int = 0
    """Of a dip: for how many windows the traffic has been low by now."""
