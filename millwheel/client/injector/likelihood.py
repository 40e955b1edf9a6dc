"""Detects timestamps that are probably in another unit than expected (section 4.5). Pure.

A wrong unit goes unnoticed for long and cannot be undone. Records of 1970 are late. A low watermark in the far future
makes every record late. So a time before 1980, or more than a year ahead of the clock, is refused, unless the user
allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp, format_timestamp
from millwheel.model.units import (
    ANY_TIMESTAMP_VARIABLE,
    MAX_AHEAD_US,
    OLDEST_USUAL_US,
    UNIT_NAMES,
    UNIT_NANOSECONDS,
    any_timestamp_default,
    describe_unlikely,
    is_likely,
)
from millwheel.sdk.errors import UsageError

__all__ = [
    "ANY_TIMESTAMP_VARIABLE",
    "OLDEST_USUAL_US",
    "UNIT_NANOSECONDS",
    "TimeCheck",
    "any_timestamp_default",
    "is_likely",
    "unlikely",
]

_IN_UNITS: Final = {
    "s": "millwheel.from_seconds",
    "ms": "millwheel.from_milliseconds",
    "us": "microseconds",
    "ns": "millwheel.from_nanoseconds",
}
_MEANT: Final = "open the injector with settings=InjectorSettings(any_timestamp=True)"


def unlikely(timestamp: int, now: int, advice: Mapping[str, str], meant: str, unit: str = "us") -> str:
    """Describe an implausible time, for an error message.

    Args:
        timestamp: The time as it was read, in microseconds.
        now: The clock's time, in microseconds.
        advice: By unit (s, ms, us, ns), what to write for a number in that unit.
        meant: What to write if the time is intended.
        unit: The unit that the number was read in. Any other word for a time that was not a number.

    Returns:
        The time, its reading in other units, and what to do.
    """
    shown = format_timestamp(Timestamp(timestamp))
    side = "before 1980" if timestamp < OLDEST_USUAL_US else "more than a year ahead"
    factor = UNIT_NANOSECONDS.get(unit)
    if factor is None:
        return f"{describe_unlikely(timestamp)}; if that is meant, {meant}"
    number = timestamp * 1_000 // factor
    text = f"{number} as {UNIT_NAMES[unit]} is {shown}"
    for other, other_factor in UNIT_NANOSECONDS.items():
        read = number * other_factor // 1_000
        if other != unit and is_likely(read, now):
            there = format_timestamp(Timestamp(read))
            return f"{text}; as {UNIT_NAMES[other]} it is {there}: did you mean {advice[other]}? If not, {meant}"
    return f"{text}, {side}; if that is meant, {meant}"


class TimeCheck:
    """Refuses times that a program gives to an injector in a wrong unit.

    Attributes:
        first: The least time that needs no check, in microseconds.
        last: The greatest time that needs no check. What is plausible at one time stays plausible later.
    """

    def __init__(self, stream: str, clock: Callable[[], int], *, enabled: bool) -> None:
        """
        Args:
            stream: The stream's name, for error messages.
            clock: Returns the time, in microseconds. It is called only if a time looks unlikely.
            enabled: False: every time is allowed.
        """
        self.first: int = OLDEST_USUAL_US if enabled else MIN_TIMESTAMP + 1
        self.last: int = 0 if enabled else MAX_TIMESTAMP - 1
        self._stream = stream
        self._clock = clock

    def check(self, times: Sequence[int], what: str, *, of_records: bool = False) -> None:
        """Check times in microseconds. ``what`` names them in the error.

        ``of_records``: they are of a call's records, so the error says which of these has the time. They are checked
        before the first one is accepted, so the error does not begin with that record, as if those before it were sent.

        Raises:
            UsageError: A time is probably in another unit than microseconds.
        """
        if not times:
            return
        try:
            unlikely_times = [at for at in (min(times), max(times)) if not self._is_likely(at)]
        except TypeError:
            return  # not a number: the core raises the error
        if unlikely_times:
            why = unlikely(unlikely_times[0], self._clock(), _IN_UNITS, _MEANT)
            at = list(times).index(unlikely_times[0])
            place = f" (record {at} of the call, of which no record is sent)" if of_records and len(times) > 1 else ""
            raise UsageError(f"{what} of stream {self._stream!r}{place}: {why}")

    def check_range(self, times: Sequence[int], what: str) -> None:
        """As ``check``, for the least and the greatest time. Empty: there is none."""
        if not times or not self.first <= times[0] <= times[1] <= self.last:
            self.check(times, what)

    def _is_likely(self, time_us: int) -> bool:
        if self.first <= time_us <= self.last or not MIN_TIMESTAMP < time_us < MAX_TIMESTAMP:
            return True
        self.last = max(self.last, self._clock() + MAX_AHEAD_US)
        return self.first <= time_us <= self.last
