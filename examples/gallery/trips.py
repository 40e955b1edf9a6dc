"""Trip matching: the start and the end of each taxi trip, or a trip that never ended.

The events arrive in any order. After ``ordered_by_time`` the hooks get those of a taxi by their timestamps, and the
timer at its place among them. So the state machine is simple: on a trip, or not. A trip without an end is over after
six hours, or when the taxi starts another one.
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
        self.end(ctx, None if record.value.starts else record.timestamp)
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
events = trips.source("events", Event).key_by("taxi").ordered_by_time()
events.process("matcher", Matcher, {"trips": Trip})
