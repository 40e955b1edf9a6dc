"""The count as topologies of MillWheel. ``counted`` is the one that is measured; ``summed`` also says what it counted.

What it reads and writes is in the environment of its processes: ``KAFKA_COUNT_BROKER``, ``_FROM``, ``_TO``,
``_WINDOW_MS`` and ``_OUT_OF_ORDER_MS``.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

import millwheel as mw
from millwheel import agg, windows
from millwheel.connectors import Sink, kafka
from millwheel.windows import Result

__all__ = ["Hit", "as_json", "counted", "summed"]


class Hit(msgspec.Struct):
    """A record of the input topic. Kafka's timestamp is its event time."""

    key: str
    number: int


def _given(name: str, otherwise: str) -> str:
    return os.environ.get(f"KAFKA_COUNT_{name}", otherwise)


def as_json(result: Result[Any]) -> bytes:
    """What is written of a window."""
    of_window = result.value if isinstance(result.value, dict) else {"count": result.value}
    return msgspec.json.encode({"key": result.key, "start": result.start // 1_000, **of_window})


_BROKER = _given("BROKER", "127.0.0.1:9092")
_SIZE = mw.milliseconds(int(_given("WINDOW_MS", "1000")))
_OUT_OF_ORDER = mw.milliseconds(int(_given("OUT_OF_ORDER_MS", "500")))


def _topology(name: str, aggregate: agg.Aggregator[Any, Any]) -> mw.Topology:
    """The topology that makes this aggregate of each key and window, from topic to topic."""
    made = mw.Topology(name)
    source = kafka.source(_given("FROM", "from"), Hit, brokers=_BROKER)
    hits = made.source("hits", Hit, source, out_of_order=_OUT_OF_ORDER)
    counts = hits.key_by("key").window(windows.tumbling(_SIZE)).aggregate("counts", aggregate)
    results: Sink[Result[Any]] = kafka.sink(
        _given("TO", "to"), key="key", value=as_json, event_times=False, brokers=_BROKER
    )
    counts.key_by("key").to("results", results, shards=2)
    return made


counted = _topology("counted", agg.count())
summed = _topology("summed", agg.several({"count": agg.count(), "sum": agg.sum("number")}))
