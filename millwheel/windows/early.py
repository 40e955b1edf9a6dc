"""When a window produces results before its end."""

from __future__ import annotations

from dataclasses import dataclass

from millwheel.model.time import Duration
from millwheel.sdk.durations import check_duration

__all__ = ["Early", "each_change", "every"]


@dataclass(frozen=True, slots=True)
class Early:
    """Results before the end of a window: ``period`` after a change, in microseconds of processing time. 0: at once."""

    period: Duration


def every(period: Duration) -> Early:
    """A result at most every ``period`` of processing time, while records arrive. For example::

        >>> import millwheel as mw
        >>> early = mw.windows.every(mw.seconds(10))

    Args:
        period: How long after a window's first record that no result has yet, in microseconds of processing time.

    Raises:
        UsageError: ``period`` is not positive, or is probably in another unit.
    """
    check_duration("the period of windows.every(...)", period)
    return Early(period)


def each_change() -> Early:
    """A result after each record."""
    return Early(Duration(0))
