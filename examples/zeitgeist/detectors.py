"""The detectors (figures 1, 3 and 9). A value that arrives before its model is kept until the model arrives."""

from __future__ import annotations

from typing import Final

import msgspec

import millwheel as mw
from examples.zeitgeist.clock import day_of, local_time
from examples.zeitgeist.records import Anomaly, DelayModel, Departure, TrafficModel, WindowCount

__all__ = ["DipDetector", "SpikeDetector"]

USUAL: Final = 4
"""The minimum of expected departures. Windows with fewer are not judged."""
PATIENCE: Final = 4
"""The number of consecutive judged windows that must be low."""


class AirportState(msgspec.Struct):
    """The dip detector's state of an airport."""

    windows: dict[int, WindowCount] = msgspec.field(default_factory=dict)
    """Windows that are not judged yet, by their ends."""
    models: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    """By slot: the expected departures, by the end of the last window that the model has learned from."""
    low: int = 0
    """The number of consecutive judged windows with less than a third of the usual traffic."""
    reported: str = ""
    """The local day of the last report about the present dip."""


class DipDetector(mw.Computation[WindowCount | TrafficModel, AirportState]):
    """Reports once a local day that an airport's traffic stays below a third of the usual.

    It needs the low watermark: a dip is the absence of events, and only the watermark distinguishes absent from late.
    """

    def process_record(self, ctx: mw.Context[AirportState], record: mw.Record[WindowCount | TrafficModel]) -> None:
        """Keep a model. Keep a window, and set a timer for its end."""
        value = record.value
        if isinstance(value, TrafficModel):
            ctx.state.models.setdefault(value.slot, {})[value.until] = value.expected
        else:
            ctx.state.windows[value.end] = value
            # When the timer fires, everything that ended earlier has arrived and is judged: timers fire in order.
            ctx.set_timer(mw.Timestamp(value.end), str(value.end))

    def process_timer(self, ctx: mw.Context[AirportState], timer: mw.Timer) -> None:
        """Judge a window by the last model of its slot that was complete when the window began."""
        state = ctx.state
        window = state.windows.pop(int(timer.tag))
        models = state.models.get(window.slot, {})
        learned = [until for until in models if until <= window.start]
        if not learned:
            return
        best = max(learned)
        state.models[window.slot] = {until: models[until] for until in models if until >= best}
        if models[best] >= USUAL:
            self._judge(ctx, window, models[best])

    def _judge(self, ctx: mw.Context[AirportState], window: WindowCount, expected: int) -> None:
        state = ctx.state
        if window.departures * 3 >= expected:
            state.low, state.reported = 0, ""
            return
        state.low += 1
        day = f"{local_time(window.start):%F}"
        if state.low >= PATIENCE and state.reported != day:
            state.reported = day
            dip = Anomaly(window.start, window.end, "dip", ctx.key, expected, window.departures, state.low)
            ctx.produce("anomalies", dip)


class Day(msgspec.Struct):
    """A local day of a city: the minutes of delay so far, their limit if known, and whether it was passed."""

    delay: int = 0
    limit: int | None = None
    reported: bool = False


class SpikeDetector(mw.Computation[Departure | DelayModel, dict[int, Day]]):
    """Reports a city's day once, as soon as its delays pass the model's limit.

    It does not wait until the day is complete, because later records can only add to the delay (section 4.6). For the
    same reason, the alert does not depend on the order of arrival. So it contains neither the delay so far nor the
    flight that passed the limit. Its timestamp is the end of the day.
    """

    def process_record(self, ctx: mw.Context[dict[int, Day]], record: mw.Record[Departure | DelayModel]) -> None:
        """Add a delay to its day, or set a day's limit."""
        value = record.value
        if isinstance(value, DelayModel):
            start = value.day
            self._day(ctx, start).limit = value.limit
        else:
            if value.delay <= 0:
                return
            start = day_of(record.timestamp).start
            self._day(ctx, start).delay += value.delay
        day = ctx.state[start]
        if day.limit is not None and day.delay > day.limit and not day.reported:
            day.reported = True
            end = mw.Timestamp(day_of(start).end)
            ctx.produce("anomalies", Anomaly(start, end, "spike", ctx.key, day.limit), timestamp=end)

    def process_timer(self, ctx: mw.Context[dict[int, Day]], timer: mw.Timer) -> None:
        """End a day, because no later record changes it."""
        ctx.state.pop(int(timer.tag), None)

    def _day(self, ctx: mw.Context[dict[int, Day]], start: int) -> Day:
        day = ctx.state.get(start)
        if day is None:
            day = ctx.state[start] = Day()
            ctx.set_timer(mw.Timestamp(day_of(start).end), str(start))
        return day
