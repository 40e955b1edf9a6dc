"""The topology of the load. Its results have numbers, so a lost or repeated record is seen.

``numberer`` has strong productions. It numbers the records of each key, counts those of each window by event-time
timers, and sets wall-clock timers (bells). ``adder`` numbers its results under other keys, with strong productions.
``passer`` passes them on with weak ones: its productions depend only on its input (G10).
"""

from __future__ import annotations

import msgspec

import millwheel as mw

WINDOW = 1_000_000
"""Length of a window, in microseconds."""

BELL = 5
"""Every record of a key whose number is a multiple of this sets a bell."""

BELL_DELAY = 400_000
"""Microseconds from the record to its bell."""


class Event(msgspec.Struct, array_like=True, frozen=True):
    """An injected record: number ``position`` of ``source``."""

    key: str
    group: str
    source: str
    position: int


class Numbered(msgspec.Struct, array_like=True, frozen=True):
    """An event, and its number within its key. In "totals", the number is within its group."""

    key: str
    number: int
    group: str
    source: str
    position: int


class WindowCount(msgspec.Struct, array_like=True, frozen=True):
    """The count of a key's records in the window that ends at ``end``. ``order``: the number of the window."""

    key: str
    end: int
    count: int
    order: int


class Rung(msgspec.Struct, array_like=True, frozen=True):
    """The bell of a key's record ``number``: the time that it was set for, and the clock when it rang."""

    key: str
    number: int
    due: int
    now: int


class Tally(msgspec.Struct):
    """The state of a key."""

    records: int = 0
    windows: dict[int, int] = {}
    closed: int = 0


class Numberer(mw.Computation[Event, Tally]):
    """Numbers the records of each key; counts them by window; rings bells."""

    def process_record(self, ctx: mw.Context[Tally], record: mw.Record[Event]) -> None:
        tally, event = ctx.state, record.value
        tally.records += 1
        end = record.timestamp - record.timestamp % WINDOW + WINDOW
        if end not in tally.windows:
            ctx.set_timer(mw.Timestamp(end), str(end))
        tally.windows[end] = tally.windows.get(end, 0) + 1
        if tally.records % BELL == 0:
            ctx.set_timer(
                mw.Timestamp(ctx.now + BELL_DELAY), f"bell {tally.records}", domain=mw.TimeDomain.PROCESSING_TIME
            )
        ctx.produce("numbered", Numbered(event.key, tally.records, event.group, event.source, event.position))

    def process_timer(self, ctx: mw.Context[Tally], timer: mw.Timer) -> None:
        if timer.domain is mw.TimeDomain.PROCESSING_TIME:
            number = int(timer.tag.removeprefix("bell "))
            ctx.produce("rung", Rung(ctx.key, number, timer.timestamp, ctx.now))
            return
        tally, end = ctx.state, int(timer.tag)
        tally.closed += 1
        ctx.produce("windows", WindowCount(ctx.key, end, tally.windows.pop(end), tally.closed))


class Adder(mw.Computation[Numbered, int]):
    """Numbers the results of the events, by group."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Numbered]) -> None:
        ctx.state += 1
        ctx.produce("totals", msgspec.structs.replace(record.value, number=ctx.state))


class Passer(mw.Computation[Numbered, None]):
    """Passes on, with weak productions."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Numbered]) -> None:
        ctx.produce("passed", record.value)


STREAMS: dict[str, type[msgspec.Struct]] = {
    **dict.fromkeys(("numbered", "totals", "passed"), Numbered),
    "windows": WindowCount,
    "rung": Rung,
}
"""The streams that the load subscribes to."""

faults = mw.Topology("faults")
faults.source("events", Event)
faults.add(
    Numberer, inputs={"events": mw.key("key")}, outputs={"numbered": Numbered, "windows": WindowCount, "rung": Rung}
)
faults.add(Adder, inputs={"numbered": mw.key("group")}, outputs={"totals": Numbered})
faults.add(Passer, inputs={"numbered": mw.key("group")}, outputs={"passed": Numbered}, strong=False)
