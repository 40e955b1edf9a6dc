"""Event time and wall time: integer microseconds since the Unix epoch.

The paper gives every record a timestamp and every timer a time (section 4), and compares both with low watermarks. All
of them have one type, :data:`Timestamp`, so that a comparison never mixes units. ``MIN_TIMESTAMP`` stands for minus
infinity: a watermark without any information. ``MAX_TIMESTAMP`` stands for plus infinity: a source that has ended.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Annotated, Final, NewType, TypeAlias

__all__ = [
    "LAST_TIMESTAMP",
    "MAX_CLOCK_SKEW_US",
    "MAX_TIMESTAMP",
    "MIN_TIMESTAMP",
    "Duration",
    "TimeDomain",
    "TimeInt",
    "Timestamp",
    "days",
    "format_duration",
    "format_timestamp",
    "from_datetime",
    "from_milliseconds",
    "from_nanoseconds",
    "from_seconds",
    "hours",
    "milliseconds",
    "minutes",
    "seconds",
    "to_datetime",
]

Timestamp = NewType("Timestamp", int)
"""Microseconds since 1970-01-01T00:00:00Z."""
TimeInt: TypeAlias = Annotated[int, Timestamp]
"""An integer in a stored type that is a time. What shows the value shows a time, and to the code it is any integer."""

Duration = NewType("Duration", int)
"""A length of time in microseconds."""

MIN_TIMESTAMP: Final = Timestamp(-(1 << 63))
MAX_TIMESTAMP: Final = Timestamp((1 << 63) - 1)
LAST_TIMESTAMP: Final = Timestamp(MAX_TIMESTAMP - 1)
"""The greatest timestamp of a record, and the greatest value at which pending work holds a watermark.

Pending work at plus infinity could not hold the watermark below it. The end of the stream could then be published
before that work is done.
"""


class TimeDomain(IntEnum):
    """The clock that a timer follows (section 4.6)."""

    EVENT_TIME = 0
    """The low watermark of the input."""
    PROCESSING_TIME = 1
    """The wall clock."""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def from_datetime(moment: datetime) -> Timestamp:
    """The timestamp of ``moment``, rounded down to a microsecond.

    Args:
        moment: A datetime with a time zone.

    Returns:
        Microseconds since the epoch.

    Raises:
        ValueError: ``moment`` has no time zone, so it does not define an instant.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone: give it one, for example tzinfo=timezone.utc")
    return Timestamp((moment - _EPOCH) // _MICROSECOND)


def from_seconds(count: float) -> Timestamp:
    """The timestamp of ``count`` seconds after 1970, as ``time.time()`` counts.

    >>> from_seconds(1.5)
    1500000

    Args:
        count: Seconds since the epoch.

    Returns:
        Microseconds since the epoch, rounded to the nearest.
    """
    return Timestamp(round(count * 1_000_000))


def from_milliseconds(count: float) -> Timestamp:
    """The timestamp of ``count`` milliseconds after 1970.

    >>> from_milliseconds(2)
    2000

    Args:
        count: Milliseconds since the epoch.

    Returns:
        Microseconds since the epoch, rounded to the nearest.
    """
    return Timestamp(round(count * 1_000))


def from_nanoseconds(count: int) -> Timestamp:
    """The timestamp of ``count`` nanoseconds after 1970, as ``time.time_ns()`` counts.

    >>> from_nanoseconds(2_999)
    2

    Args:
        count: Nanoseconds since the epoch.

    Returns:
        Microseconds since the epoch, rounded down.
    """
    return Timestamp(count // 1_000)


def to_datetime(timestamp: Timestamp) -> datetime:
    """The UTC datetime of ``timestamp``.

    Args:
        timestamp: Microseconds since the epoch.

    Returns:
        A datetime with the time zone UTC.

    Raises:
        OverflowError: ``timestamp`` is outside the years 1 to 9999, for example one of the two infinities.
    """
    return _EPOCH + timedelta(microseconds=timestamp)


def format_timestamp(timestamp: Timestamp) -> str:
    """``timestamp`` in ISO 8601, in UTC. The infinities are ``-inf`` and ``+inf``.

    >>> [format_timestamp(Timestamp(at)) for at in (0, 1_700_000_000_000_000_000)]
    ['1970-01-01T00:00:00Z', '+055840-11-08T22:13:20Z']

    Args:
        timestamp: Microseconds since the epoch.

    Returns:
        The text. A year outside 1 to 9999 has a sign and six digits.
    """
    if timestamp <= MIN_TIMESTAMP:
        return "-inf"
    if timestamp >= MAX_TIMESTAMP:
        return "+inf"
    try:
        return to_datetime(timestamp).isoformat().replace("+00:00", "Z")
    except OverflowError:
        # The calendar repeats every 400 years. Find the same day in a year that datetime supports.
        cycles, within = divmod(timestamp, _CALENDAR_CYCLE_US)
        near = to_datetime(Timestamp(within))
        return f"{near.year + 400 * cycles:+07d}{near.isoformat()[4:]}".replace("+00:00", "Z")


_CALENDAR_CYCLE_US: Final = 146_097 * 86_400_000_000
"""Microseconds in 400 years. The Gregorian calendar repeats after that time."""

_UNITS: Final = (("y", 365 * 86_400), ("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
"""The units of formatted durations, with their seconds. The largest is first."""


def format_duration(duration: Duration) -> str:
    """A duration for people to read: its two largest units.

    >>> [format_duration(seconds(count)) for count in (0.0004, 1.24, 75, 15_120, 95_299_200)]
    ['0.4 ms', '1.2 s', '1 min 15 s', '4 h 12 min', '3 y 8 d']

    Args:
        duration: Microseconds. A negative duration gets a minus sign.

    Returns:
        Years of 365 days, days, hours, minutes and seconds. A duration below ten seconds has tenths of a second. A
        duration below one second is in milliseconds.
    """
    if duration < 0:
        return f"-{format_duration(Duration(-duration))}"
    if duration < 999_500:
        return f"{duration / 1_000:.{1 if duration < 9_950 else 0}f} ms"
    if duration < 9_950_000:
        return f"{duration / 1_000_000:.1f} s"
    whole = round(duration / 1_000_000)
    large = next(index for index, (_, size) in enumerate(_UNITS) if whole >= size)
    name, size = _UNITS[large]
    shown = f"{whole // size:,} {name}"
    if large + 1 < len(_UNITS):
        below, smaller = _UNITS[large + 1]
        if rest := whole % size // smaller:
            shown += f" {rest} {below}"
    return shown


MAX_CLOCK_SKEW_US: Final = 10_000_000
"""A generous upper bound, in microseconds, of the difference between the clocks of healthy machines."""


def milliseconds(count: float) -> Duration:
    """``count`` milliseconds as a duration in microseconds."""
    return Duration(round(count * 1_000))


def seconds(count: float) -> Duration:
    """``count`` seconds as a duration in microseconds."""
    return Duration(round(count * 1_000_000))


def minutes(count: float) -> Duration:
    """``count`` minutes as a duration in microseconds."""
    return seconds(count * 60)


def hours(count: float) -> Duration:
    """``count`` hours as a duration in microseconds."""
    return seconds(count * 3_600)


def days(count: float) -> Duration:
    """``count`` days of 24 hours as a duration in microseconds."""
    return hours(count * 24)
