"""Event time and wall time: integer microseconds since the Unix epoch.

The paper gives every record a timestamp and every timer a time (section 4), and compares them with
low watermarks. All of them are one type, :data:`Timestamp`, so that a comparison never mixes units.
``MIN_TIMESTAMP`` stands for minus infinity (a watermark of which nothing is known) and
``MAX_TIMESTAMP`` for plus infinity (a source that has ended, and will send nothing more).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NewType

__all__ = [
    "CLOCKS_DIFFER",
    "LAST_TIMESTAMP",
    "MAX_TIMESTAMP",
    "MIN_TIMESTAMP",
    "Duration",
    "Timestamp",
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

Duration = NewType("Duration", int)
"""A length of time in microseconds."""

MIN_TIMESTAMP: Final = Timestamp(-(1 << 63))
MAX_TIMESTAMP: Final = Timestamp((1 << 63) - 1)
LAST_TIMESTAMP: Final = Timestamp(MAX_TIMESTAMP - 1)
"""The last moment that a record can stand at, and that anything pending holds a watermark at: what stood at plus
infinity itself could not keep the end from being told before it came."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def from_datetime(moment: datetime) -> Timestamp:
    """The timestamp of an aware ``moment``; a naive one is refused, for it names no instant."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone: give it one, for example tzinfo=timezone.utc")
    return Timestamp((moment - _EPOCH) // _MICROSECOND)


def from_seconds(count: float) -> Timestamp:
    """The timestamp of ``count`` seconds after 1970, as ``time.time()`` counts.

    >>> from_seconds(1.5)
    1500000
    """
    return Timestamp(round(count * 1_000_000))


def from_milliseconds(count: float) -> Timestamp:
    """The timestamp of ``count`` milliseconds after 1970.

    >>> from_milliseconds(2)
    2000
    """
    return Timestamp(round(count * 1_000))


def from_nanoseconds(count: int) -> Timestamp:
    """The timestamp of ``count`` nanoseconds after 1970, as ``time.time_ns()`` counts; rounded down.

    >>> from_nanoseconds(2_999)
    2
    """
    return Timestamp(count // 1_000)


def to_datetime(timestamp: Timestamp) -> datetime:
    """The UTC moment of ``timestamp``; OverflowError for the two infinities."""
    return _EPOCH + timedelta(microseconds=timestamp)


def format_timestamp(timestamp: Timestamp) -> str:
    """ISO 8601 in UTC; the infinities as ``-inf`` and ``+inf``. Years outside 1 to 9999 have a sign and six digits.

    >>> [format_timestamp(Timestamp(at)) for at in (0, 1_700_000_000_000_000_000)]
    ['1970-01-01T00:00:00Z', '+055840-11-08T22:13:20Z']
    """
    if timestamp <= MIN_TIMESTAMP:
        return "-inf"
    if timestamp >= MAX_TIMESTAMP:
        return "+inf"
    try:
        return to_datetime(timestamp).isoformat().replace("+00:00", "Z")
    except OverflowError:
        # The calendar repeats every 400 years: find the same day within the years that datetime knows.
        cycles, within = divmod(timestamp, _CYCLE)
        near = to_datetime(Timestamp(within))
        return f"{near.year + 400 * cycles:+07d}{near.isoformat()[4:]}".replace("+00:00", "Z")


_CYCLE: Final = 146_097 * 86_400_000_000
"""Microseconds of the 400 years after which the Gregorian calendar repeats."""

_UNITS: Final = (("y", 365 * 86_400), ("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
"""Names and seconds of the units that durations are shown in, the largest first."""


def format_duration(duration: Duration) -> str:
    """A duration as people read it: its two largest units.

    >>> [format_duration(seconds(count)) for count in (0.0004, 1.24, 75, 15_120, 95_299_200)]
    ['0.4 ms', '1.2 s', '1 min 15 s', '4 h 12 min', '3 y 8 d']

    Args:
        duration: microseconds. A negative one gets a minus sign.

    Returns:
        Years of 365 days, days, hours, minutes, seconds; below ten seconds a tenth of a second, below one
        milliseconds.
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


CLOCKS_DIFFER: Final = 10_000_000
"""Microseconds by which the clocks of healthy machines differ at most, amply."""


def milliseconds(count: float) -> Duration:
    """``count`` milliseconds as a duration."""
    return Duration(round(count * 1_000))


def seconds(count: float) -> Duration:
    """``count`` seconds as a duration."""
    return Duration(round(count * 1_000_000))


def minutes(count: float) -> Duration:
    """``count`` minutes as a duration."""
    return seconds(count * 60)


def hours(count: float) -> Duration:
    """``count`` hours as a duration."""
    return seconds(count * 3_600)
