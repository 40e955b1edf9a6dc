"""The model calculators (figure 1): what is usual, learned from the windows that have ended.

Windows of different hours come from different commits of the window counter, so their order of arrival says
nothing. Each is kept until the low watermark has reached its end: then every window that ended before it has
arrived, and timers fire in the order of time, so models learn in that order.
"""

from __future__ import annotations

from typing import Final

import msgspec

import millwheel as mw
from examples.zeitgeist.clock import day_of
from examples.zeitgeist.records import DelayModel, TrafficModel, WindowCount

__all__ = ["DelayModelCalculator", "TrafficModelCalculator"]

WEEKS: Final = 6
"""How far back a model looks."""
FIRST_WEEKS: Final = 4
"""How much it has to have seen before it says anything."""


class Learned(msgspec.Struct):
    """What has been learned, oldest first, and what is still to be, by the window's start or end."""

    history: list[int] = msgspec.field(default_factory=list)
    pending: dict[int, int] = msgspec.field(default_factory=dict)

    def learn(self, which: int, most: int) -> None:
        """Move a pending value to the history, which keeps the last ``most``."""
        self.history.append(self.pending.pop(which))
        del self.history[:-most]


class TrafficModelCalculator(mw.Computation[WindowCount, Learned]):
    """Per airport and slot of the week: the lower median of the last six weeks. One snowstorm does not move it."""

    def process_record(self, ctx: mw.Context[Learned], record: mw.Record[WindowCount]) -> None:
        """Keep a window until its turn."""
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

    It is for the day after next, so that it is there before that day begins: a spike needs to wait for nothing.
    """

    def process_record(self, ctx: mw.Context[Learned], record: mw.Record[WindowCount]) -> None:
        """Add an hour of an airport to its day."""
        window, pending = record.value, ctx.state.pending
        day = day_of(window.start)
        pending[day.start] = pending.get(day.start, 0) + window.delay
        # A day's last hour comes once for each airport, all at the same end: beyond it none is still to come.
        ctx.set_timer(mw.Timestamp(day.end + 1), str(day.start))

    def process_timer(self, ctx: mw.Context[Learned], timer: mw.Timer) -> None:
        """Learn from a day."""
        ctx.state.learn(int(timer.tag), WEEKS * 7)
        history = ctx.state.history
        if len(history) >= FIRST_WEEKS * 7:
            tomorrow = day_of(timer.timestamp)
            ctx.produce("delay-models", DelayModel(ctx.key, tomorrow.end, max(history) * 9 // 8))
