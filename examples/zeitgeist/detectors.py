"""The detectors (figures 1, 3 and 9). What comes before its model is kept until the model is there."""

from __future__ import annotations

from typing import Final

import msgspec

import millwheel as mw
from examples.zeitgeist.clock import day_of, local_time
from examples.zeitgeist.records import Anomaly, DelayModel, Departure, TrafficModel, WindowCount

__all__ = ["DipDetector", "SpikeDetector"]

USUAL: Final = 4
"""Windows in which fewer departures are usual are not judged."""
PATIENCE: Final = 4
"""So many judged windows in a row have to be low."""


class AirportState(msgspec.Struct):
    """What the dip detector knows of an airport."""

    windows: dict[int, WindowCount] = msgspec.field(default_factory=dict)
    """By end: complete, and not judged yet."""
    models: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    """By slot: the expected departures, by the end of what they were learned from."""
    low: int = 0
    """Judged windows in a row with less than a third of the usual traffic."""
    reported: str = ""
    """The local day for which the present row was reported last."""


class DipDetector(mw.Computation[WindowCount | TrafficModel, AirportState]):
    """Reports, once a local day, that an airport's traffic stays below a third of the usual.

    It takes the low watermark: a dip is what did *not* come, and only the watermark tells absent from late.
    """

    def process_record(self, ctx: mw.Context[AirportState], record: mw.Record[WindowCount | TrafficModel]) -> None:
        """Keep a window or a model until all that ended before it is known."""
        value = record.value
        if isinstance(value, TrafficModel):
            ctx.state.models.setdefault(value.slot, {})[value.until] = value.expected
        else:
            ctx.state.windows[value.end] = value
            # By then everything that ended before it has arrived, and been judged: timers fire in order.
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
    """A local day of a city: the minutes of delay so far, their limit once it is known, and whether it was passed."""

    delay: int = 0
    limit: int | None = None
    reported: bool = False


class SpikeDetector(mw.Computation[Departure | DelayModel, dict[int, Day]]):
    """Reports a city's day, once, as soon as its delays pass the model's limit.

    It does not wait for the day to be complete: what is still to come can only add to the delay (section 4.6). For
    the same reason the alert doesn't depend on the order of arrival, as long as it names neither the delay so far
    nor the flight that tipped the balance; its timestamp is the end of the day.
    """

    def process_record(self, ctx: mw.Context[dict[int, Day]], record: mw.Record[Departure | DelayModel]) -> None:
        """Add a delay to its day, or learn a day's limit."""
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
        """A day is complete: nothing will change it."""
        ctx.state.pop(int(timer.tag), None)

    def _day(self, ctx: mw.Context[dict[int, Day]], start: int) -> Day:
        day = ctx.state.get(start)
        if day is None:
            day = ctx.state[start] = Day()
            ctx.set_timer(mw.Timestamp(day_of(start).end), str(start))
        return day
