"""Detects times that are in seconds, milliseconds or nanoseconds instead of microseconds (section 4.5)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from millwheel.model.time import Timestamp, format_timestamp

__all__ = [
    "ANY_TIMESTAMP_VARIABLE",
    "MAX_AHEAD_US",
    "NEWEST_USUAL_US",
    "OLDEST_USUAL_US",
    "UNIT_NAMES",
    "UNIT_NANOSECONDS",
    "any_timestamp_default",
    "describe_unlikely",
    "describe_wrong_unit",
    "is_likely",
    "wrong_unit",
]

ANY_TIMESTAMP_VARIABLE: Final = "MILLWHEEL_ANY_TIMESTAMP"
"""The environment variable that sets the default of the option ``any_timestamp``."""

OLDEST_USUAL_US: Final = 315_532_800_000_000
"""1980-01-01T00:00:00Z, in microseconds."""
NEWEST_USUAL_US: Final = 7_258_118_400_000_000
"""2200-01-01T00:00:00Z, in microseconds."""

MAX_AHEAD_US: Final = 366 * 86_400_000_000
"""How far an injector or a source may be ahead of the clock: a year."""

UNIT_NANOSECONDS: Final[Mapping[str, int]] = MappingProxyType(
    {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
)
UNIT_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
)


def is_likely(timestamp: int, now: int) -> bool:
    """Whether a time (microseconds) is from 1980 or later, and at most a year after ``now``."""
    return OLDEST_USUAL_US <= timestamp <= now + MAX_AHEAD_US


def describe_unlikely(timestamp: int) -> str:
    """A time that is not likely, in words: on which side it is."""
    side = "before 1980" if timestamp < OLDEST_USUAL_US else "more than a year ahead"
    return f"{format_timestamp(Timestamp(timestamp))} is {side}"


def any_timestamp_default() -> bool:
    """Whether the environment variable MILLWHEEL_ANY_TIMESTAMP allows every timestamp."""
    return os.environ.get(ANY_TIMESTAMP_VARIABLE, "").lower() in ("1", "true", "yes")


def wrong_unit(timestamp: int, reference: int) -> str:
    """The unit that ``timestamp`` is probably in, if that is not microseconds.

    Args:
        timestamp: A number that the caller gave as microseconds since 1970.
        reference: A correct time in microseconds, for comparison.

    Returns:
        "s", "ms" or "ns". Empty if the number is a usual time in microseconds, or is a usual time in no unit. Also
        empty if the reference is not between 1980 and 2200: such a program uses another epoch or unit throughout.
    """
    if not OLDEST_USUAL_US <= reference <= NEWEST_USUAL_US or OLDEST_USUAL_US <= timestamp <= NEWEST_USUAL_US:
        return ""
    for unit, factor in UNIT_NANOSECONDS.items():
        if OLDEST_USUAL_US <= timestamp * factor // 1_000 <= NEWEST_USUAL_US:
            return unit
    return ""


def describe_wrong_unit(timestamp: int, unit: str) -> str:
    """A message about a number that was given as microseconds but is probably in ``unit`` ("s", "ms" or "ns").

    It says what the number means in both units, and what to write instead.
    """
    name = UNIT_NAMES[unit]
    read = format_timestamp(Timestamp(timestamp))
    there = format_timestamp(Timestamp(timestamp * UNIT_NANOSECONDS[unit] // 1_000))
    return (
        f"{timestamp} microseconds are {read}; {timestamp} {name} are {there}: write millwheel.from_{name}({timestamp})"
    )
