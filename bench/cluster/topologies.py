"""The topologies that run on the cluster while it is measured."""

from __future__ import annotations

import time
from random import Random
from typing import Final
from zlib import crc32

import msgspec

import millwheel as mw

__all__ = [
    "PINGS_PER_RECORD",
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
    """The name of a key. Names sort like the numbers."""
    return f"k{number:07d}"


class Ping(msgspec.Struct, array_like=True):
    """A record that notes the time at each point of its way, in nanoseconds of the machine's monotonic clock."""

    user: str
    page: str
    sent: int
    made: int = 0
    """The time in the hook of the first computation."""
    run: int = 0
    """The time in the hook of the second computation, which produces the result."""
    got: int = 0
    """The time in the hook of the result's consumer."""


PINGS_PER_RECORD: Final = 50
"""The number of pings in one record of the probe."""


class Seen(msgspec.Struct, array_like=True):
    """Pings whose way has ended."""

    pings: list[Ping]


class First(mw.Computation[Ping, int]):
    """Counts its key's records, and produces each record again."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Ping]) -> None:
        """Note the start of the stage."""
        ctx.state += 1
        ping = record.value
        ping.made = time.perf_counter_ns()
        ctx.produce("by-page", ping)


class Second(mw.Computation[Ping, int]):
    """Counts by another key, and produces a result for each record."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Ping]) -> None:
        """Produce a result that depends on the stored state."""
        ctx.state += 1
        ping = record.value
        ping.run = time.perf_counter_ns()
        ctx.produce("results", ping)


class Probe(mw.Computation[Ping, None]):
    """Consumes the results, without state and without guarantees.

    It reports :data:`PINGS_PER_RECORD` pings in one record. So it adds almost nothing to the load and to the times.
    """

    def __init__(self) -> None:
        self._got: list[Ping] = []

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Ping]) -> None:
        """Note the end of the stage: the result has arrived."""
        ping = record.value
        ping.got = time.perf_counter_ns()
        self._got.append(ping)
        if len(self._got) >= PINGS_PER_RECORD:
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
    """A record of the steady load. ``fill``: the number of bytes of state that it leaves with its key. 0: none."""

    key: str
    sent: int
    fill: int = 0


class Forward(mw.Computation[Beat, int]):
    """Counts, and produces each record again."""

    def __init__(self, output: str) -> None:
        self.output = output

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Beat]) -> None:
        """Produce one record for each record."""
        ctx.state += 1
        ctx.produce(self.output, record.value)


chain = mw.Topology("chain")
chain.source("ticks", Beat)
chain.add(Forward("ticks-1"), name="one", inputs={"ticks": mw.key("key")}, outputs={"ticks-1": Beat})
chain.add(Forward("ticks-2"), name="two", inputs={"ticks-1": mw.key("key")}, outputs={"ticks-2": Beat})
chain.add(Forward("ticks-3"), name="three", inputs={"ticks-2": mw.key("key")}, outputs={"ticks-3": Beat})


class Held(msgspec.Struct, array_like=True):
    """The state of a key in the interval that is moved, split and merged."""

    records: int = 0
    filling: bytes = b""


class Holder(mw.Computation[Beat, Held]):
    """Keeps state of a given size, and answers every beat."""

    def process_record(self, ctx: mw.Context[Held], record: mw.Record[Beat]) -> None:
        """Answer the record, unless it only fills the key's state."""
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
    """Each key has a state and a timer far in the future."""

    def process_record(self, ctx: mw.Context[Setting], record: mw.Record[Setting]) -> None:
        """Set the timer, or move it."""
        ctx.state = record.value
        ctx.set_timer(mw.Timestamp(record.value.at), "far")

    def process_timer(self, ctx: mw.Context[Setting], timer: mw.Timer) -> None:
        """Never called: no timer becomes due during the measurement."""
        raise AssertionError(f"timer of {ctx.key} at {timer.timestamp}")


timers = mw.Topology("timers")
timers.source("settings", Setting)
timers.add(TimerHolder, inputs={"settings": mw.key("key")})
