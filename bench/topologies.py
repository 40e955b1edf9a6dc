"""The measured topologies: keyed counts, two stages with different keys, large states, and hooks that take long."""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec

import millwheel as mw
from millwheel import agg, windows

__all__ = [
    "LONG",
    "SECOND",
    "Amount",
    "Count",
    "Event",
    "Item",
    "Put",
    "counts",
    "counts_batch",
    "counts_plain",
    "flood",
    "kept",
    "spark_rows",
    "stages",
    "steady",
    "windowed",
    "windowed_long",
    "windowed_plain",
    "windowed_sum",
]

SECOND = mw.seconds(1)
LONG = mw.minutes(1)
_HOOK_SECONDS = 0.000_1


class Event(msgspec.Struct):
    """100 bytes in MessagePack. See :func:`bench.load.encode_event`."""

    key: str
    payload: bytes


class Count(msgspec.Struct, array_like=True):
    """One key's records in one second."""

    key: str
    end: int
    count: int


class Amount(Event):
    """A record with a number."""

    amount: int


class SparkRow(msgspec.Struct):
    """What Spark writes, beside its time."""

    id: str
    key: str
    text: str


class SecondCounter(mw.Computation[Event, dict[int, int]]):
    """Counts records per second of event time. It is written by hand, without the library's windows."""

    def process_record(self, ctx: mw.Context[dict[int, int]], record: mw.Record[Event]) -> None:
        """Count the record in its second."""
        end = record.timestamp - record.timestamp % SECOND + SECOND
        counts = ctx.state
        if end in counts:
            counts[end] += 1
        else:
            counts[end] = 1
            ctx.set_timer(mw.Timestamp(end), str(end))

    def process_timer(self, ctx: mw.Context[dict[int, int]], timer: mw.Timer) -> None:
        """Produce the count of a second that is complete."""
        ctx.produce("counts", Count(ctx.key, timer.timestamp, ctx.state.pop(timer.timestamp)))


class SecondBatchCounter(mw.BatchComputation[Event, dict[int, int]]):
    """The same count with one call for many records. It needs no value of a record, only the key and the time."""

    max_records = 8_192

    def process_batch(self, ctx: mw.BatchContext[dict[int, int]], batch: mw.RecordBatch[Event]) -> None:
        """Count each record in its second."""
        states, ends = ctx.states, (batch.timestamps // SECOND + 1) * SECOND
        for row, (key, end) in enumerate(zip(batch.keys, ends.tolist(), strict=True)):
            counts = states[key]
            if end in counts:
                counts[end] += 1
            else:
                counts[end] = 1
                ctx.at(row).set_timer(mw.Timestamp(end), str(end))

    def process_timer(self, ctx: mw.Context[dict[int, int]], timer: mw.Timer) -> None:
        """Produce the count of a second that is complete."""
        ctx.produce("counts", Count(ctx.key, timer.timestamp, ctx.state.pop(timer.timestamp)))


def _by_hand(name: str, guaranteed: bool, counter: type[mw.Computation[Event, Any]] = SecondCounter) -> mw.Topology:
    topology = mw.Topology(name)
    topology.source("events", Event)
    topology.add(
        counter,
        inputs={"events": mw.key("key")},
        outputs={"counts": Count},
        exactly_once=guaranteed,
        strong=guaranteed,
    )
    return topology


def _windowed(
    name: str, guaranteed: bool, kind: type[msgspec.Struct] = Event, field: str = "", length: mw.Duration = SECOND
) -> mw.Topology:
    """``field``: what is added up. Empty: records are counted. ``length``: of a window."""
    topology = mw.Topology(name)
    topology.source("events", kind)
    made = agg.sum(field) if field else agg.count()
    topology.add(
        windows.Aggregate(windows.tumbling(length), made.bind(kind), output="counts"),
        name="counter",
        inputs={"events": mw.key("key")},
        outputs={"counts": windows.Result[int]},
        exactly_once=guaranteed,
        strong=guaranteed,
    )
    return topology


counts = _by_hand("counts", True)
counts_batch = _by_hand("counts-batch", True, SecondBatchCounter)
counts_plain = _by_hand("counts-plain", False)
windowed = _windowed("windowed", True)
windowed_long = _windowed("windowed-long", True, length=LONG)
windowed_plain = _windowed("windowed-plain", False)
spark_rows = _windowed("spark-rows", True, SparkRow)
windowed_sum = _windowed("windowed-sum", True, Amount, "amount")


class Ping(msgspec.Struct, array_like=True):
    """A record with the time at which it was sent (nanoseconds of the sender's clock)."""

    user: str
    page: str
    sent: int


class Forward(mw.Computation[Ping, int]):
    """Counts its key's records, and produces each record again."""

    def __init__(self, output: str) -> None:
        self.output = output

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Ping]) -> None:
        """Produce one record for each record, and change the state."""
        ctx.state += 1
        ctx.produce(self.output, record.value)


stages = mw.Topology("stages")
stages.source("pings", Ping)
stages.add(Forward("by-user"), name="first", inputs={"pings": mw.key("user")}, outputs={"by-user": Ping})
stages.add(Forward("by-page"), name="second", inputs={"by-user": mw.key("page")}, outputs={"by-page": Ping})


class Put(msgspec.Struct):
    """A record: what its key's state becomes."""

    key: str
    size: int
    sent: int


class Kept(msgspec.Struct):
    """A state of a given size."""

    ballast: bytes = b""
    times: int = 0


class Keep(mw.Computation[Put, Kept]):
    """Keeps the last ballast of each key, and produces the record."""

    def process_record(self, ctx: mw.Context[Kept], record: mw.Record[Put]) -> None:
        """Replace the ballast, unless the size is 0."""
        ctx.state.times += 1
        if record.value.size:
            ctx.state.ballast = random.Random(ctx.state.times).randbytes(record.value.size)
        else:
            ctx.produce("kept", record.value)


kept = mw.Topology("kept")
kept.source("puts", Put)
kept.add(Keep, inputs={"puts": mw.key("key")}, outputs={"kept": Put})


class Item(msgspec.Struct):
    """A record whose hook works for a tenth of a millisecond."""

    key: str


class Work(mw.Computation[Item, int]):
    """Keeps the worker busy, counts, and passes the record on."""

    def __init__(self, output: str = "") -> None:
        self._output = output

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Work for a fixed time."""
        end = time.perf_counter() + _HOOK_SECONDS
        while time.perf_counter() < end:
            pass
        ctx.state += 1
        if self._output:
            ctx.produce(self._output, record.value)


def _row(name: str, computations: int) -> mw.Topology:
    topology = mw.Topology(name)
    topology.source(f"{name}-0", Item)
    for number in range(computations):
        output = f"{name}-{number + 1}" if number + 1 < computations else ""
        outputs = {output: Item} if output else {}
        topology.add(Work(output), name=f"work-{number}", inputs={f"{name}-{number}": mw.key("key")}, outputs=outputs)
    return topology


flood = _row("flood", 4)
steady = _row("steady", 1)
