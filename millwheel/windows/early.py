"""When a window produces results before its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millwheel.model.time import Duration
from millwheel.sdk.durations import check_duration
from millwheel.sdk.errors import UsageError

__all__ = ["Early", "check_early", "each_change", "every"]


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


def check_early(early: Any) -> None:
    """Raise UsageError if it is neither an :class:`Early` nor None: a duration, or a function that was not called."""
    if early is not None and not isinstance(early, Early):
        shown = getattr(early, "__qualname__", None) or f"{early!r:.80}"
        raise UsageError(
            f"early= takes windows.every(mw.seconds(10)) of processing time, or windows.each_change(), not {shown}"
        )
