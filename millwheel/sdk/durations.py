"""Checks of durations: microseconds, and probably not the number of another unit (section 4.5)."""

from __future__ import annotations

from typing import Any, Final

from millwheel.model.units import ANY_TIMESTAMP_VARIABLE, any_timestamp_default
from millwheel.sdk.errors import UsageError

__all__ = ["check_duration", "duration_problem"]

_MILLISECOND_US: Final = 1_000
_SECOND_US: Final = 1_000_000
_MINUTE_SECONDS: Final = 60


def duration_problem(name: str, value: Any, *, least: int = 1, most: int | None = None) -> str:
    """What is wrong with a duration, and what to write instead. Empty if nothing is.

    Args:
        name: What the duration is for.
        value: The duration, in microseconds.
        least: The smallest value: 0 or 1.
        most: The largest value. A larger one is in another unit.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        sign = "a positive duration" if least else "a duration of 0 or more"
        return f"{name} must be {sign} such as millwheel.seconds(1), not {value!r}"
    if most is not None and value > most:
        return f"{name} is {value} microseconds, more than a year: use millwheel.seconds(...) and its like"
    if _is_unusual(value) and not any_timestamp_default():
        return (
            f"{name} is {value} microseconds: write millwheel.seconds({value}) or millwheel.milliseconds({value}). "
            f"If it is meant, set {ANY_TIMESTAMP_VARIABLE}=1, here and at the workers"
        )
    return ""


def check_duration(name: str, value: Any, *, least: int = 1) -> None:
    """Check a duration of a step or a window.

    Args:
        name: What the duration is for.
        value: The duration, in microseconds.
        least: The smallest value: 0 or 1.

    Raises:
        UsageError: The value is no integer, is too small, or is probably in another unit.
    """
    problem = duration_problem(name, value, least=least)
    if problem:
        raise UsageError(problem)


def _is_unusual(value: int) -> bool:
    """Whether a number of microseconds is probably one of seconds or milliseconds.

    No program waits for less than a millisecond of event time. Below a second, a number of whole minutes, such as
    3,600, is one of seconds. A number of whole milliseconds may be meant.
    """
    if value >= _SECOND_US or value == 0:
        return False
    return value < _MILLISECOND_US or (value % _MILLISECOND_US != 0 and value % _MINUTE_SECONDS == 0)
