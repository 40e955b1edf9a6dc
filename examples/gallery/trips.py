"""Trip matching: the start and the end of each taxi trip, or a trip that never ended.

The events arrive in any order. ``complete`` with ``list`` passes them on in order, once the low watermark has
passed them. So the state machine behind it is simple. A timer ends a trip after six hours. The taxi's next event may
come before the timer, which waits for the low watermark: so ``process_record`` looks at the time, too.
"""

from __future__ import annotations

from typing import Final

import msgspec

import millwheel as mw

__all__ = ["LIMIT", "Event", "Trip", "trips"]

LIMIT: Final = mw.hours(6)


class Event(msgspec.Struct, frozen=True):
    """A taxi starts or ends a trip."""

    taxi: str
    starts: bool


class Trip(msgspec.Struct, frozen=True):
    """A trip of a taxi. ``end`` is None if nobody knows it."""

    taxi: str
    start: mw.Timestamp
    end: mw.Timestamp | None


class Matcher(mw.Computation[Event, mw.Timestamp | None]):
    """The state is when the present trip began."""

    def process_record(self, ctx: mw.Context[mw.Timestamp | None], record: mw.Record[Event]) -> None:
        if ctx.state is not None:
            in_time = not record.value.starts and record.timestamp < ctx.state + LIMIT
            self.end(ctx, record.timestamp if in_time else None)
        if record.value.starts:
            ctx.state = record.timestamp
            ctx.set_timer(mw.Timestamp(record.timestamp + LIMIT))

    def process_timer(self, ctx: mw.Context[mw.Timestamp | None], timer: mw.Timer) -> None:
        self.end(ctx, None)

    def end(self, ctx: mw.Context[mw.Timestamp | None], at: mw.Timestamp | None) -> None:
        if ctx.state is not None:
            ctx.produce("trips", Trip(ctx.key, ctx.state, at))
        ctx.cancel_timer()
        del ctx.state


trips = mw.Topology("trips")
ordered = trips.source("events", Event).key_by("taxi").complete("ordered", list, Event)
ordered.key_by("taxi").process("matcher", Matcher, {"trips": Trip})
