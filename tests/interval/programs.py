"""What the simulated world runs: a mapper, and a counter of windows behind it, with every way to fail or wait."""

from __future__ import annotations

import types
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import millwheel as mw
from millwheel.model.time import Duration, Timestamp

WINDOW = 10
WALL_DELAY = 50


@dataclass
class Event:
    """An injected record, and what the mapper does with it.

    ``kind``: plain, flaky (fails at first), poison (always fails), wall (the counter sets a wall timer), many (makes
    three items), held (holds the watermark until its window ends, and makes its item then).
    """

    number: int
    key: str
    group: str
    kind: str = "plain"
    time: int = 0


@dataclass
class Item:
    """What the mapper makes of an event, or of a window's end."""

    name: str
    group: str
    kind: str
    time: int


@dataclass
class Seen:
    """A key's log: names of what was processed, in order, and counts by window."""

    names: list[str] = field(default_factory=list)
    windows: dict[int, int] = field(default_factory=dict)
    held: dict[str, Item] = field(default_factory=dict)
    """By a timer's tag: what its hook makes, and the watermark is held for."""
    fired: int = -(1 << 62)
    watermark: int = -(1 << 63)
    wrong: list[str] = field(default_factory=list)
    """What should never have been seen. In the state, since a zombie may read a row of its successor's: no harm
    comes of that, because nothing of it can be committed."""

    def shown(self, watermark: int) -> None:
        """No key is ever shown a watermark that goes back, whoever runs it (G7)."""
        self.expect(watermark >= self.watermark, f"watermark {watermark} after {self.watermark}")
        self.watermark = max(watermark, self.watermark)

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)


@dataclass
class Outside:
    """What user code knows of the world beside MillWheel."""

    broken: set[str] = field(default_factory=set)
    on_time: bool = True
    """Whether no late record has been injected."""

    def fails_at_first(self, name: str) -> None:
        if name not in self.broken:
            self.broken.add(name)
            raise RuntimeError(f"{name} is flaky")


@types.coroutine
def breath() -> Generator[None, None, None]:
    """Let the world go on for a while."""
    yield


def end_of(stamp: int) -> int:
    return stamp - stamp % WINDOW + WINDOW


def items_of(event: Event) -> list[Item]:
    """What the mapper makes of an event; only the first asks for more than to be counted."""
    made = [Item(str(event.number), event.group, event.kind, event.time)]
    if event.kind == "many":
        made += [Item(f"{event.number}{more}", event.group, "plain", event.time) for more in "bc"]
    return made


class Mapper(mw.Computation[Event, Seen]):
    """Its productions depend on its input alone, as weak productions ask (6.1.3)."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside

    def work(self, ctx: mw.Context[Seen], record: mw.Record[Event]) -> None:
        event = record.value
        ctx.state.shown(ctx.watermark)
        ctx.state.expect(not (self.outside.on_time and record.late), f"event {event} late at {ctx.watermark}")
        end = Timestamp(end_of(record.timestamp))
        if event.kind == "held" and not record.late:
            ctx.state.held[f"held {event.number}"] = items_of(event)[0]
            ctx.set_timer(end, f"held {event.number}")
            self.hold(ctx)
        else:
            ctx.state.names.append(str(event.number))
            for item in items_of(event):
                ctx.produce("items", item)
        ctx.set_timer(end, str(end))
        if event.kind == "flaky":
            self.outside.fails_at_first(f"mapper {event.number}")
        if event.kind == "poison":
            raise ValueError("poison")

    def process_record(self, ctx: mw.Context[Seen], record: mw.Record[Event]) -> Any:
        self.work(ctx, record)

    def hold(self, ctx: mw.Context[Seen]) -> None:
        """Hold the watermark at the oldest of what is to be made."""
        if ctx.state.held:
            ctx.set_hold(Timestamp(min(item.time for item in ctx.state.held.values())))
        else:
            ctx.clear_hold()

    def process_timer(self, ctx: mw.Context[Seen], timer: mw.Timer) -> Any:
        outside = self.outside
        ctx.state.shown(ctx.watermark)
        ctx.state.expect(ctx.watermark >= timer.timestamp, f"timer {timer} early at {ctx.watermark}")
        ctx.state.expect(not outside.on_time or timer.timestamp >= ctx.state.fired, f"timer {timer} out of order")
        ctx.state.fired = timer.timestamp
        if (held := ctx.state.held.pop(timer.tag, None)) is not None:
            ctx.state.names.append(held.name)
            ctx.produce("items", held, timestamp=Timestamp(held.time))
            self.hold(ctx)
            return
        ctx.produce("items", Item(f"end {ctx.key} {timer.tag}", "ends", "plain", timer.timestamp))


class AsyncMapper(Mapper):
    """The same, waiting in between."""

    async def process_record(self, ctx: mw.Context[Seen], record: mw.Record[Event]) -> None:
        await breath()
        self.work(ctx, record)
        await breath()

    async def process_timer(self, ctx: mw.Context[Seen], timer: mw.Timer) -> None:
        await breath()
        Mapper.process_timer(self, ctx, timer)


class Passing(mw.Computation[Event, None]):
    """Keeps nothing, and copies of records are not recognised."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Event]) -> None:
        event = record.value
        for item in items_of(event):
            ctx.produce("items", item)
        if event.kind == "flaky":
            self.outside.fails_at_first(f"mapper {event.number}")
        if event.kind == "poison":
            raise ValueError("poison")


class Counter(mw.Computation[Item, Seen]):
    """Counts items by window, and rings wall timers."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside

    def process_record(self, ctx: mw.Context[Seen], record: mw.Record[Item]) -> None:
        item, state = record.value, ctx.state
        state.shown(ctx.watermark)
        ctx.state.expect(not (self.outside.on_time and record.late), f"item {item} late at {ctx.watermark}")
        state.names.append(item.name)
        end = end_of(record.timestamp)
        state.windows[end] = state.windows.get(end, 0) + 1
        ctx.set_timer(Timestamp(end), str(end))
        if item.kind == "wall":
            ctx.set_timer(Timestamp(ctx.now + WALL_DELAY), f"wall {item.name}", domain=mw.TimeDomain.PROCESSING_TIME)
        if item.kind == "flaky":
            self.outside.fails_at_first(f"counter {item.name}")

    def process_timer(self, ctx: mw.Context[Seen], timer: mw.Timer) -> None:
        outside = self.outside
        ctx.state.shown(ctx.watermark)
        if timer.domain is mw.TimeDomain.PROCESSING_TIME:
            ctx.state.expect(ctx.now >= timer.timestamp, f"wall timer {timer} early at {ctx.now}")
            ctx.produce("out", (ctx.key, timer.tag, 1))
            return
        ctx.state.expect(ctx.watermark >= timer.timestamp, f"timer {timer} early at {ctx.watermark}")
        ctx.state.expect(not outside.on_time or timer.timestamp >= ctx.state.fired, f"timer {timer} out of order")
        ctx.state.fired = timer.timestamp
        ctx.produce("out", (ctx.key, timer.tag, ctx.state.windows.pop(timer.timestamp)))


MAPPERS: dict[str, Any] = {"strong": Mapper, "weak": Mapper, "asynchronous": AsyncMapper}
MAPPERS |= {"weak, asynchronous": AsyncMapper, "passing": Passing}
"""By the way in which it produces."""


def topology(outside: Outside, way: str) -> mw.Topology:
    """events → mapper → items → counter → out."""
    made = mw.Topology("world")
    made.source("events", Event)
    policy = mw.dead_letter(after=2, initial=Duration(3))
    made.add(
        MAPPERS[way](outside),
        name="mapper",
        inputs={"events": mw.key("key")},
        outputs={"items": Item},
        strong=way in ("strong", "asynchronous"),
        exactly_once=way != "passing",
        straggler_delay=Duration(20),
        on_failure=policy,
    )
    made.add(
        Counter(outside),
        name="counter",
        inputs={"items": mw.key("group")},
        outputs={"out": tuple[str, str, int]},
        on_failure=policy,
    )
    return made
