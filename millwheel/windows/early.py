"""When a window produces results before its end."""

from __future__ import annotations

from dataclasses import dataclass

from millwheel.model.time import Duration
from millwheel.sdk.errors import UsageError

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
        UsageError: ``period`` is not positive.
    """
    if period <= 0:
        raise UsageError(f"every takes a positive period, not {period} microseconds: use windows.each_change()")
    return Early(period)


def each_change() -> Early:
    """A result after each record."""
    return Early(Duration(0))
