"""The model calculators (figure 1). They learn what is usual from the windows that have ended.

Windows of different hours come from different commits of the window counter. Their order of arrival therefore has no
meaning. Each window is kept until the low watermark has reached its end. By then, every window that ended earlier has
arrived. Timers fire in time order, so models learn in that order.
"""

from __future__ import annotations

from typing import Final

import msgspec

import millwheel as mw
from examples.zeitgeist.clock import day_of
from examples.zeitgeist.records import DelayModel, TrafficModel, WindowCount

__all__ = ["DelayModelCalculator", "TrafficModelCalculator"]

WEEKS: Final = 6
"""The maximum number of weeks from which a model learns."""
FIRST_WEEKS: Final = 4
"""The minimum number of weeks from which a model is produced."""


class Learned(msgspec.Struct):
    """The values already learned, oldest first, and the pending values by the window's start or end."""

    history: list[int] = msgspec.field(default_factory=list)
    pending: dict[int, int] = msgspec.field(default_factory=dict)

    def learn(self, which: int, most: int) -> None:
        """Move a pending value to the history, which keeps the last ``most`` values."""
        self.history.append(self.pending.pop(which))
        del self.history[:-most]


class TrafficModelCalculator(mw.Computation[WindowCount, Learned]):
    """Per airport and slot of the week: the lower median of the last six weeks. One snowstorm does not move it."""

    def process_record(self, ctx: mw.Context[Learned], record: mw.Record[WindowCount]) -> None:
        """Keep a window, and set a timer for its end."""
        window = record.value
        ctx.state.pending[window.end] = window.departures
        ctx.set_timer(mw.Timestamp(window.end), str(window.end))

    def process_timer(self, ctx: mw.Context[Learned], timer: mw.Timer) -> None:
        """Learn from a window."""
        ctx.state.learn(timer.timestamp, WEEKS)
        history = ctx.state.history
        if len(history) >= FIRST_WEEKS:
            airport, slot = mw.split_key(ctx.key)
            expected = sorted(history)[(len(history) - 1) // 2]
            ctx.produce("traffic-models", TrafficModel(airport, slot, timer.timestamp, expected))


class DelayModelCalculator(mw.Computation[WindowCount, Learned]):
    """Per city: an eighth more than the worst day of the last six weeks.

    The limit is for the day after next. So it is known before that day begins, and a spike is reported without waiting.
    """

    def process_record(self, ctx: mw.Context[Learned], record: mw.Record[WindowCount]) -> None:
        """Add an hour of an airport to its day."""
        window, pending = record.value, ctx.state.pending
        day = day_of(window.start)
        pending[day.start] = pending.get(day.start, 0) + window.delay
        # The last hour of a day comes once for each airport, always with the same end. After that end, the day is
        # complete.
        ctx.set_timer(mw.Timestamp(day.end + 1), str(day.start))

    def process_timer(self, ctx: mw.Context[Learned], timer: mw.Timer) -> None:
        """Learn from a day."""
        ctx.state.learn(int(timer.tag), WEEKS * 7)
        history = ctx.state.history
        if len(history) >= FIRST_WEEKS * 7:
            tomorrow = day_of(timer.timestamp)
            ctx.produce("delay-models", DelayModel(ctx.key, tomorrow.end, max(history) * 9 // 8))
