"""New York's clock: local hours and days as windows, and their names."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from millwheel import MAX_TIMESTAMP, Timestamp, hours, to_datetime
from millwheel.windows import Window, tumbling

__all__ = ["NEW_YORK", "day_of", "hour_of", "local_time", "next_hour", "slot_of"]

NEW_YORK: Final = ZoneInfo("America/New_York")

_HOURS: Final = tumbling(hours(1), zone=NEW_YORK)
_DAYS: Final = tumbling(hours(24), zone=NEW_YORK)
_HOUR: Final = 3_600_000_000
"""In New York, windows begin at whole hours of UTC, too. So one look-up serves a whole hour."""


def hour_of(timestamp: int) -> Window:
    """The local hour that contains ``timestamp``."""
    return _hour(timestamp // _HOUR)


def next_hour(window: Window) -> Window | None:
    """The local hour after ``window``. None at the end of time."""
    return hour_of(window.end) if window.end < MAX_TIMESTAMP else None


def day_of(timestamp: int) -> Window:
    """The local day, from midnight to midnight, that contains ``timestamp``.

    It has 23 or 25 hours where the clocks change.
    """
    return _day(timestamp // _HOUR)


def local_time(timestamp: int) -> datetime:
    """The local time in New York."""
    return to_datetime(Timestamp(timestamp)).astimezone(NEW_YORK)


def slot_of(window: Window) -> str:
    """The window's weekday and hour, such as ``Fri 17``."""
    return _slot(window.start)


@lru_cache(maxsize=4_096)
def _hour(hour: int) -> Window:
    return _HOURS.windows_of(hour * _HOUR)[0]


@lru_cache(maxsize=4_096)
def _day(hour: int) -> Window:
    return _DAYS.windows_of(hour * _HOUR)[0]


@lru_cache(maxsize=4_096)
def _slot(start: int) -> str:
    return f"{local_time(start):%a %H}"
