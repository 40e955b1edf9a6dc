"""Counts departures by airport and local hour (figures 2 and 9)."""

from __future__ import annotations

from typing import Final

import msgspec

import millwheel as mw
from examples.zeitgeist.clock import hour_of, slot_of
from examples.zeitgeist.records import Departure, WindowCount
from millwheel.windows import Window

__all__ = ["Hours", "WindowCounter"]

DAY: Final = 24
"""Empty hours are produced so many at a time."""


class Hour(msgspec.Struct):
    """What has left in a window so far."""

    departures: int = 0
    delay: int = 0


class Hours(msgspec.Struct):
    """The hours of an airport that are not complete, by their starts."""

    city: str = ""
    open: dict[int, Hour] = msgspec.field(default_factory=dict)


class WindowCounter(mw.Computation[Departure, Hours]):
    """One WindowCount per airport and local hour, once the low watermark says that the hour is complete.

    Hours without a departure count too: that nothing left is what a dip is made of. From an airport's
    first hour on there is one after the other until ``until`` (microseconds; by default without end).
    A source that ends (watermark +inf) ends them too. Without an ``until`` this is where the low watermark was
    before its end: how many empty hours follow the last departure is then a matter of when it was published.
    """

    def __init__(self, until: mw.Timestamp = mw.MAX_TIMESTAMP) -> None:
        self.until = until

    def process_record(self, ctx: mw.Context[Hours], record: mw.Record[Departure]) -> None:
        """Count a departure in its hour."""
        departure, state = record.value, ctx.state
        window = hour_of(record.timestamp)
        hour = state.open.get(window.start)
        if hour is None:
            hour = state.open[window.start] = Hour()
            state.city = departure.city
            ctx.set_timer(mw.Timestamp(window.end), str(window.start))
        hour.departures += 1
        hour.delay += max(departure.delay, 0)

    def process_timer(self, ctx: mw.Context[Hours], timer: mw.Timer) -> None:
        """An hour is complete: produce it, and wait for the next, which may have no departure to announce it."""
        hour = hour_of(int(timer.tag))
        self._produce(ctx, hour)
        follower = self._follower(ctx, hour)
        for _ in range(DAY):
            if follower is None or follower.end > ctx.watermark:
                break
            # It is over already, and nothing has left.
            self._produce(ctx, follower)
            follower = self._follower(ctx, follower)
        if follower is not None:
            ctx.set_timer(mw.Timestamp(follower.end), str(follower.start))

    def _follower(self, ctx: mw.Context[Hours], hour: Window) -> Window | None:
        """The next hour, unless it has a timer already, or is none that is counted."""
        follower, is_open = hour_of(hour.end), ctx.state.open
        ends = not is_open and min(self.until, ctx.watermark) == mw.MAX_TIMESTAMP
        return None if follower.start in is_open or follower.end > self.until or ends else follower

    def _produce(self, ctx: mw.Context[Hours], window: Window) -> None:
        state = ctx.state
        hour = state.open.pop(window.start, None) or Hour()
        count = WindowCount(ctx.key, state.city, slot_of(window), window.start, window.end, hour.departures, hour.delay)
        ctx.produce("windows", count, timestamp=mw.Timestamp(window.end))
