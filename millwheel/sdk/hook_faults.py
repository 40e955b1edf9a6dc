"""The errors for faulty calls of a hook's context: what is wrong, and what to write instead (section 4)."""

from __future__ import annotations

from typing import Any, Final

from millwheel.model.limits import MAX_VALUE_BYTES
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.model.units import ANY_TIMESTAMP_VARIABLE, describe_wrong_unit, wrong_unit
from millwheel.sdk.errors import TooLargeError, UsageError

__all__ = ["check_unusual", "large_production", "no_domain", "too_many"]

_SMALLER_VALUES: Final = """produce it in pieces, for example
    for start in range(0, len(data), 1_000_000):
        ctx.produce({stream!r}, Piece(start, data[start : start + 1_000_000]))"""

_SLICES: Final = """make it in slices, in a chain of timers, for example
    for row in ctx.state[:100_000]: ctx.produce("rows", row)
    del ctx.state[:100_000]
    if ctx.state: ctx.set_timer(timer.timestamp, "next slice")"""


def large_production(stream: str, size: int) -> TooLargeError:
    """The error for a record of ``size`` bytes."""
    what = f"a record produced to {stream!r}"
    return TooLargeError(what, size, MAX_VALUE_BYTES, _SMALLER_VALUES.format(stream=stream))


def too_many(key: str, verb: str, unit: str, most: int) -> TooLargeError:
    """The error for more than ``most`` productions or timers in one commit."""
    return TooLargeError(f"what the hooks of key {key!r} {verb} in one commit", most + 1, most, _SLICES, unit=unit)


def no_domain(domain: Any) -> UsageError:
    """The error for a value that is no TimeDomain. A bool would equal one, and be journaled as the other."""
    return UsageError(f"a timer's domain is a TimeDomain, not {type(domain).__name__}: {domain!r}")


def check_unusual(timestamp: int, method: str, reference: int, *, processing: bool, any_unit: bool) -> None:
    """Raise UsageError for a time that is out of range, or that is probably in another unit.

    Args:
        timestamp: The time, in microseconds.
        method: The context's method that received it.
        reference: The present time of the timestamp's domain, in microseconds.
        processing: Whether that is processing time.
        any_unit: Whether a time in another unit is allowed.
    """
    if not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
        raise UsageError(f"{method} takes a Timestamp between MIN_TIMESTAMP and MAX_TIMESTAMP, not {timestamp}")
    unit = "" if any_unit else wrong_unit(timestamp, reference)
    if unit:
        relative = "ctx.now" if processing else "the timestamp of the record or timer"
        raise UsageError(
            f"{method} takes a moment in microseconds since 1970. {describe_wrong_unit(timestamp, unit)}. "
            f"If the number is a delay, add it to {relative}. "
            f"If the moment is meant, set {ANY_TIMESTAMP_VARIABLE}=1 where the hook runs"
        )
