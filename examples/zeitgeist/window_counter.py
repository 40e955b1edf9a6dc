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
"""The maximum number of empty hours that one timer produces."""


class Hour(msgspec.Struct):
    """The departures of a window so far."""

    departures: int = 0
    delay: int = 0


class Hours(msgspec.Struct):
    """The hours of an airport that are not complete, by their starts."""

    city: str = ""
    open: dict[int, Hour] = msgspec.field(default_factory=dict)


class WindowCounter(mw.Computation[Departure, Hours]):
    """Produces one WindowCount per airport and local hour, when the low watermark shows that the hour is complete.

    Hours without a departure count too, because a dip consists of them. From an airport's first hour on, every hour is
    produced until ``until`` (microseconds; by default without end). The end of the source (watermark +inf) also ends
    the hours. Without an ``until``, they then end where the low watermark was before. In this case the number of empty
    hours after the last departure depends on when that watermark was published.
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
        """Produce the hour that is complete, and set a timer for the next.

        If the next hour has no departure, no record sets its timer.
        """
        hour = hour_of(int(timer.tag))
        self._produce(ctx, hour)
        follower = self._follower(ctx, hour)
        for _ in range(DAY):
            if follower is None or follower.end > ctx.watermark:
                break
            # This hour is already complete, and contains no departure.
            self._produce(ctx, follower)
            follower = self._follower(ctx, follower)
        if follower is not None:
            ctx.set_timer(mw.Timestamp(follower.end), str(follower.start))

    def _follower(self, ctx: mw.Context[Hours], hour: Window) -> Window | None:
        """The next hour. None if it already has a timer, or is not counted."""
        follower, is_open = hour_of(hour.end), ctx.state.open
        ends = not is_open and min(self.until, ctx.watermark) == mw.MAX_TIMESTAMP
        return None if follower.start in is_open or follower.end > self.until or ends else follower

    def _produce(self, ctx: mw.Context[Hours], window: Window) -> None:
        state = ctx.state
        hour = state.open.pop(window.start, None) or Hour()
        count = WindowCount(ctx.key, state.city, slot_of(window), window.start, window.end, hour.departures, hour.delay)
        ctx.produce("windows", count, timestamp=mw.Timestamp(window.end))
