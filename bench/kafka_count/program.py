"""The count as a topology of MillWheel.

What it reads and writes is in the environment of its processes: ``KAFKA_COUNT_BROKER``, ``_FROM``, ``_TO``,
``_WINDOW_MS`` and ``_OUT_OF_ORDER_MS``.
"""

from __future__ import annotations

import os

import msgspec

import millwheel as mw
from millwheel import agg, windows
from millwheel.connectors import Sink, kafka
from millwheel.windows import Result

__all__ = ["Hit", "counted"]


class Hit(msgspec.Struct):
    """A record of the input topic. Kafka's timestamp is its event time."""

    key: str
    number: int


def _given(name: str, otherwise: str) -> str:
    return os.environ.get(f"KAFKA_COUNT_{name}", otherwise)


def _as_json(result: Result[int]) -> bytes:
    return msgspec.json.encode({"key": result.key, "start": result.start // 1_000, "count": result.value})


_BROKER = _given("BROKER", "127.0.0.1:9092")
_SIZE = mw.milliseconds(int(_given("WINDOW_MS", "1000")))
_OUT_OF_ORDER = mw.milliseconds(int(_given("OUT_OF_ORDER_MS", "500")))

counted = mw.Topology("counted")
hits = counted.source(
    "hits", Hit, kafka.source(_given("FROM", "from"), Hit, brokers=_BROKER), out_of_order=_OUT_OF_ORDER
)
counts = hits.key_by("key").window(windows.tumbling(_SIZE)).aggregate("counts", agg.count())
results: Sink[Result[int]] = kafka.sink(
    _given("TO", "to"), key="key", value=_as_json, event_times=False, brokers=_BROKER
)
counts.key_by("key").to("results", results, shards=2)
