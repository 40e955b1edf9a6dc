"""Late data: sales of each minute, corrected for ten more minutes, and what comes even later.

A result comes at the end of its minute. Each late sale then gives a corrected result with the next ``revision``: the
newest one is right. A sale for which no window is kept any more goes to ``too-late``, and is not lost.
"""

from __future__ import annotations

import msgspec

import millwheel as mw
from millwheel import agg, windows

__all__ = ["Minute", "Sale", "late_data"]


class Sale(msgspec.Struct, frozen=True):
    """Something is sold."""

    shop: str
    cents: int


class Minute(msgspec.Struct, frozen=True):
    """The sales of a shop in a minute. A later revision replaces an earlier one."""

    shop: str
    start: mw.Timestamp
    cents: int
    revision: int


late_data = mw.Topology("late-data")
sales = late_data.source("sales", Sale)
minutes = sales.key_by("shop").window(windows.tumbling(mw.minutes(1)))
minutes.aggregate("minutes", Minute, cents=agg.sum("cents"), allowed_lateness=mw.minutes(10), too_late="too-late")
