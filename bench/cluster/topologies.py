"""What runs on the cluster while it is measured."""

from __future__ import annotations

import time
from random import Random
from typing import Final
from zlib import crc32

import msgspec

import millwheel as mw

__all__ = [
    "TOLD",
    "Beat",
    "Ping",
    "Seen",
    "Setting",
    "chain",
    "held",
    "name_of",
    "plain_stage",
    "strong_stage",
    "timers",
]

_SPARE = Random(1).randbytes(1 << 20)


def name_of(number: int) -> str:
    """A key's name; their order is that of the numbers."""
    return f"k{number:07d}"


class Ping(msgspec.Struct, array_like=True):
    """A record that knows where it was when, in nanoseconds of the machine's monotonic clock."""

    user: str
    page: str
    sent: int
    made: int = 0
    """In the hook of the first computation."""
    run: int = 0
    """In the hook of the second, which makes the result."""
    got: int = 0
    """In the hook of whoever gets the result."""


TOLD: Final = 50
"""Pings in one record of the probe's."""


class Seen(msgspec.Struct, array_like=True):
    """Pings that are at their end."""

    pings: list[Ping]


class First(mw.Computation[Ping, int]):
    """Counts its key's records, and passes each on."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Ping]) -> None:
        """The stage begins."""
        ctx.state += 1
        ping = record.value
        ping.made = time.perf_counter_ns()
        ctx.produce("by-page", ping)


class Second(mw.Computation[Ping, int]):
    """Counts by another key, and makes a result of each record."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Ping]) -> None:
        """The result depends on what is stored."""
        ctx.state += 1
        ping = record.value
        ping.run = time.perf_counter_ns()
        ctx.produce("results", ping)


class Probe(mw.Computation[Ping, None]):
    """Gets the results; has neither state nor guarantees of its own, and tells of :data:`TOLD` pings at a time, so that
    it adds next to nothing to the load, and nothing to the times."""

    def __init__(self) -> None:
        self._got: list[Ping] = []

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Ping]) -> None:
        """The stage has ended: its result is here."""
        ping = record.value
        ping.got = time.perf_counter_ns()
        self._got.append(ping)
        if len(self._got) >= TOLD:
            ctx.produce("seen", Seen(self._got))
            self._got = []


def _stage(name: str, guaranteed: bool) -> mw.Topology:
    topology = mw.Topology(name)
    topology.source("pings", Ping)
    topology.add(
        First,
        inputs={"pings": mw.key("user")},
        outputs={"by-page": Ping},
        exactly_once=guaranteed,
        strong=guaranteed,
    )
    topology.add(
        Second,
        inputs={"by-page": mw.key("page")},
        outputs={"results": Ping},
        exactly_once=guaranteed,
        strong=guaranteed,
    )
    topology.add(Probe, inputs={"results": mw.key("page")}, outputs={"seen": Seen}, exactly_once=False, strong=False)
    return topology


strong_stage = _stage("stage-strong", True)
plain_stage = _stage("stage-plain", False)


class Beat(msgspec.Struct, array_like=True):
    """A record of the steady load; ``fill`` is how many bytes of state it leaves with its key, if any."""

    key: str
    sent: int
    fill: int = 0


class Forward(mw.Computation[Beat, int]):
    """Counts, and passes on."""

    def __init__(self, output: str) -> None:
        self.output = output

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Beat]) -> None:
        """One in, one out."""
        ctx.state += 1
        ctx.produce(self.output, record.value)


chain = mw.Topology("chain")
chain.source("ticks", Beat)
chain.add(Forward("ticks-1"), name="one", inputs={"ticks": mw.key("key")}, outputs={"ticks-1": Beat})
chain.add(Forward("ticks-2"), name="two", inputs={"ticks-1": mw.key("key")}, outputs={"ticks-2": Beat})
chain.add(Forward("ticks-3"), name="three", inputs={"ticks-2": mw.key("key")}, outputs={"ticks-3": Beat})


class Held(msgspec.Struct, array_like=True):
    """What a key of the interval that changes hands has."""

    records: int = 0
    filling: bytes = b""


class Holder(mw.Computation[Beat, Held]):
    """Keeps state of a given size, and answers every beat."""

    def process_record(self, ctx: mw.Context[Held], record: mw.Record[Beat]) -> None:
        """What fills a key is not answered."""
        held, beat = ctx.state, record.value
        held.records += 1
        if beat.fill:
            start = crc32(beat.key.encode()) % (len(_SPARE) - beat.fill)
            held.filling = _SPARE[start : start + beat.fill]
        else:
            ctx.produce("answers", beat)
        ctx.state = held


held = mw.Topology("held")
held.source("beats", Beat)
held.add(Holder, inputs={"beats": mw.key("key")}, outputs={"answers": Beat})


class Setting(msgspec.Struct, array_like=True):
    """A record that sets its key's timer."""

    key: str = ""
    at: int = 0
    filling: bytes = b""


class TimerHolder(mw.Computation[Setting, Setting]):
    """Each key has a state and a timer that is far away."""

    def process_record(self, ctx: mw.Context[Setting], record: mw.Record[Setting]) -> None:
        """Set it, or set it anew."""
        ctx.state = record.value
        ctx.set_timer(mw.Timestamp(record.value.at), "far")

    def process_timer(self, ctx: mw.Context[Setting], timer: mw.Timer) -> None:
        """None of them is ever due."""
        raise AssertionError(f"timer of {ctx.key} at {timer.timestamp}")


timers = mw.Topology("timers")
timers.source("settings", Setting)
timers.add(TimerHolder, inputs={"settings": mw.key("key")})
