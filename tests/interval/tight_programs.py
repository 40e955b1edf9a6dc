"""What runs in the tight world: hooks that produce several times, set timers that produce, and hold the watermark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import millwheel as mw
from millwheel.model.time import Duration, Timestamp
from tests.interval.programs import Outside, breath

__all__ = ["KINDS", "Kept", "Made", "Work", "outputs_of", "timer_outputs_of", "topology"]

KINDS = ("strong", "asynchronous", "weak", "passing")
"""``passing``: weak, keeps nothing, and copies are not recognised."""


@dataclass
class Work:
    """A record that says what its hook does: ``records`` productions, and a timer ``ahead`` of its time, or none.

    ``holds``: what the timer produces has the record's timestamp, which the key's state holds until then.
    """

    name: str
    key: str
    records: int = 1
    ahead: int | None = None
    holds: bool = False
    flaky: bool = False


@dataclass
class Made:
    """What a hook of ``key`` has produced."""

    key: str
    name: str


@dataclass
class Kept:
    """A key's state: the hooks that ran, in order, and what it holds the watermark for, by the timer's tag."""

    hooks: list[str] = field(default_factory=list)
    waits: dict[str, int] = field(default_factory=dict)


def outputs_of(name: str, records: int) -> list[tuple[str, str]]:
    """(stream, name) of what the hook of a record produces, in order."""
    return [("other" if number % 3 == 2 else "out", f"{name}.{number}") for number in range(records)]


def timer_outputs_of(tag: str) -> list[tuple[str, str]]:
    """The same of a timer's hook."""
    return [("out", f"{tag}!0"), ("out", f"{tag}!1")]


class Passing(mw.Computation[Work, None]):
    """Produces what a record states, and keeps nothing."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Work]) -> None:
        _produce(ctx, record.value)
        if record.value.flaky:
            self.outside.fails_at_first(record.value.name)


class Keeping(mw.Computation[Work, Kept]):
    """Keeps what happened, too. What records produce depends on them alone, as weak productions ask (6.1.3)."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside

    def work(self, ctx: mw.Context[Kept], record: mw.Record[Work]) -> None:
        work = record.value
        ctx.state.hooks.append(f"{work.name} {work.records}")
        _produce(ctx, work)
        if work.ahead is not None:
            ctx.set_timer(Timestamp(record.timestamp + work.ahead), work.name)
            if work.holds:
                ctx.state.waits[work.name] = record.timestamp
                ctx.set_hold(Timestamp(min(ctx.state.waits.values())))
        if work.flaky:
            self.outside.fails_at_first(work.name)

    def process_record(self, ctx: mw.Context[Kept], record: mw.Record[Work]) -> Any:
        self.work(ctx, record)

    def process_timer(self, ctx: mw.Context[Kept], timer: mw.Timer) -> Any:
        state = ctx.state
        state.hooks.append(f"!{timer.tag}")
        at = state.waits.pop(timer.tag, None)
        for stream, name in timer_outputs_of(timer.tag):
            ctx.produce(stream, Made(ctx.key, name), timestamp=None if at is None else Timestamp(at))
        if state.waits:
            ctx.set_hold(Timestamp(min(state.waits.values())))
        else:
            ctx.clear_hold()


class Waiting(Keeping):
    """The same, waiting in between."""

    async def process_record(self, ctx: mw.Context[Kept], record: mw.Record[Work]) -> None:
        await breath()
        self.work(ctx, record)
        await breath()

    async def process_timer(self, ctx: mw.Context[Kept], timer: mw.Timer) -> None:
        await breath()
        Keeping.process_timer(self, ctx, timer)


def _produce(ctx: mw.Context[Any], work: Work) -> None:
    for stream, name in outputs_of(work.name, work.records):
        ctx.produce(stream, Made(work.key, name))


def topology(kind: str) -> mw.Topology:
    """events → mapper → out and other, which sinks take."""
    made = mw.Topology("world")
    made.source("events", Work)
    programs: dict[str, Callable[[Outside], mw.Computation[Work, Any]]] = {"asynchronous": Waiting, "passing": Passing}
    made.add(
        programs.get(kind, Keeping)(Outside()),
        name="mapper",
        inputs={"events": mw.key("key")},
        outputs={"out": Made, "other": Made},
        strong=kind in ("strong", "asynchronous"),
        exactly_once=kind != "passing",
        straggler_delay=Duration(20),
        on_failure=mw.dead_letter(after=3, initial=Duration(3)),
    )
    return made
