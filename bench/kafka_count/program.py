"""The count as topologies of MillWheel. ``counted`` is the one that is measured; ``summed`` also says what it counted.

``hooked`` is ``counted`` by a hook that is written by hand.

``sourced`` and ``injected`` write nothing to Kafka. The second one gets its records from an injector.

What it reads and writes is in the environment of its processes: ``KAFKA_COUNT_BROKER``, ``_FROM``, ``_TO``,
``_WINDOW_MS`` and ``_OUT_OF_ORDER_MS``.
"""

from __future__ import annotations

import os
from typing import TypeVar

import msgspec

import millwheel as mw
from millwheel import agg, windows
from millwheel.connectors import Sink, kafka
from millwheel.streams import KeyedStream, Stream, WindowedStream
from millwheel.windows import Result

__all__ = ["Hit", "HitCounter", "Summed", "as_json", "counted", "hooked", "injected", "sourced", "summed"]

R = TypeVar("R", bound="Result[int] | Summed")


class Hit(msgspec.Struct):
    """A record of the input topic. Kafka's timestamp is its event time."""

    key: str
    number: int


class HitCounter(mw.Computation[Hit, dict[int, int]]):
    """Counts records by window. It is written by hand, without the library's windows."""

    def process_record(self, ctx: mw.Context[dict[int, int]], record: mw.Record[Hit]) -> None:
        """Count the record in its window."""
        end = record.timestamp - record.timestamp % _SIZE + _SIZE
        counts = ctx.state
        if end in counts:
            counts[end] += 1
        else:
            counts[end] = 1
            ctx.set_timer(mw.Timestamp(end), str(end))

    def process_timer(self, ctx: mw.Context[dict[int, int]], timer: mw.Timer) -> None:
        """Produce the count of a window that is complete."""
        end = timer.timestamp
        ctx.produce("counts", Result(ctx.key, mw.Timestamp(end - _SIZE), end, ctx.state.pop(end)))


class Summed(msgspec.Struct):
    """A result of ``summed``: how many records a key has in a window, and the sum of their numbers."""

    key: str
    start: mw.Timestamp
    count: int
    sum: int


def _given(name: str, otherwise: str) -> str:
    return os.environ.get(f"KAFKA_COUNT_{name}", otherwise)


def as_json(result: Result[int] | Summed) -> bytes:
    """What is written of a window."""
    of_window = {"count": result.count, "sum": result.sum} if isinstance(result, Summed) else {"count": result.value}
    return msgspec.json.encode({"key": result.key, "start": result.start // 1_000, **of_window})


_BROKER = _given("BROKER", "127.0.0.1:9092")
_SIZE = mw.milliseconds(int(_given("WINDOW_MS", "1000")))
_OUT_OF_ORDER = mw.milliseconds(int(_given("OUT_OF_ORDER_MS", "500")))


def _hits_of(topology: mw.Topology) -> KeyedStream[Hit]:
    """The records of the input topic by key."""
    source = kafka.source(_given("FROM", "from"), Hit, brokers=_BROKER)
    return topology.source("hits", Hit, source, out_of_order=_OUT_OF_ORDER).key_by("key")


def _windows_of(topology: mw.Topology) -> WindowedStream[Hit]:
    """The records of the input topic by key and window."""
    return _hits_of(topology).window(windows.tumbling(_SIZE))


def _write(results: Stream[R]) -> None:
    sink: Sink[R] = kafka.sink(_given("TO", "to"), key="key", value=as_json, event_times=False, brokers=_BROKER)
    results.key_by("key").to("results", sink, shards=2)


counted = mw.Topology("counted")
_write(_windows_of(counted).aggregate("counts", agg.count()))

hooked = mw.Topology("hooked")
_write(_hits_of(hooked).process("counts", HitCounter, {"counts": Result[int]}))

summed = mw.Topology("summed")
_write(_windows_of(summed).aggregate("counts", Summed, count=agg.count(), sum=agg.sum("number")))

sourced = mw.Topology("sourced")
_windows_of(sourced).aggregate("counts", agg.count())

injected = mw.Topology("injected")
_hits = injected.source("hits", Hit)
_hits.key_by("key").window(windows.tumbling(_SIZE)).aggregate("counts", agg.count())
