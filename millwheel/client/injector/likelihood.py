"""Timestamps that are probably written in another unit than they are read in (section 4.5). Pure.

A wrong unit is not seen for a long time, and cannot be taken back: records of 1970 are late, and a low watermark in
the far future makes everything late. So a time before 1980, or more than a year ahead of the clock, is refused, unless
the user says that it is meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millwheel.core.time import Timestamp, format_timestamp
from millwheel.core.units import (
    ANY_TIMESTAMP_VARIABLE,
    OLDEST_USUAL,
    UNIT_NAMES,
    UNIT_NANOSECONDS,
    any_timestamp_default,
)

__all__ = [
    "ANY_TIMESTAMP_VARIABLE",
    "OLDEST_USUAL",
    "UNIT_NANOSECONDS",
    "any_timestamp_default",
    "is_likely",
    "unlikely",
]

_AHEAD: Final = 366 * 86_400_000_000


def is_likely(timestamp: int, now: int) -> bool:
    """Whether a time (microseconds) is from 1980 on, and at most a year after ``now``."""
    return OLDEST_USUAL <= timestamp <= now + _AHEAD


def unlikely(timestamp: int, now: int, advice: Mapping[str, str], meant: str, unit: str = "us") -> str:
    """What to say of a time that is not likely.

    Args:
        timestamp: The time as it was read, in microseconds.
        now: The clock's time, in microseconds.
        advice: By unit (s, ms, us, ns), what to write for a number in that unit.
        meant: What to write if the time is meant.
        unit: The unit that the number was read in; another word for a time that is no number.

    Returns:
        The time, what it would be in other units, and what to do.
    """
    shown = format_timestamp(Timestamp(timestamp))
    side = "before 1980" if timestamp < OLDEST_USUAL else "more than a year ahead"
    factor = UNIT_NANOSECONDS.get(unit)
    if factor is None:
        return f"{shown} is {side}; if that is meant, {meant}"
    number = timestamp * 1_000 // factor
    text = f"{number} as {UNIT_NAMES[unit]} is {shown}"
    for other, other_factor in UNIT_NANOSECONDS.items():
        read = number * other_factor // 1_000
        if other != unit and is_likely(read, now):
            there = format_timestamp(Timestamp(read))
            return f"{text}; as {UNIT_NAMES[other]} it is {there}: did you mean {advice[other]}? If not, {meant}"
    return f"{text}, {side}; if that is meant, {meant}"
