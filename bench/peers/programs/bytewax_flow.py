"""The count as a dataflow of Bytewax.

Its clock takes the time from records alone, because they are of the past. By default, all windows would be overdue by
the system's clock, and Bytewax would look at each key without a pause. And a key's time would go on with that clock:
where the machine is slow, records would be late.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow
from bytewax.operators import windowing

__all__ = ["flow"]

_job: dict[str, Any] = json.loads(os.environ["PEER_JOB"])
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_size = timedelta(milliseconds=_job["window_ms"])
_size_ms: int = _job["window_ms"]

Hit = tuple[str, datetime]


def _hit(message: Any) -> Hit:
    """The key of a record, and its event time, which is Kafka's timestamp."""
    return orjson.loads(message.value)["key"], datetime.fromtimestamp(message.timestamp[1] / 1_000, UTC)


def _result(counted: tuple[str, tuple[int, int]]) -> Any:
    """The record of a count. Windows have numbers, from the epoch on."""
    key, (window, count) = counted
    value = orjson.dumps({"key": key, "start": window * _size_ms, "count": count})
    return KafkaSinkMessage(key.encode(), value)


flow = Dataflow("count")
_read = kop.input("hits", flow, brokers=[_job["broker"]], topics=[_job["source"]])
_hits = op.map("key", _read.oks, _hit)
_clock = windowing.EventClock(
    ts_getter=lambda hit: hit[1],
    wait_for_system_duration=timedelta(milliseconds=_job["out_of_order_ms"]),
    now_getter=lambda: _EPOCH,
    to_system_utc=lambda _: None,
)
_windows = windowing.TumblingWindower(length=_size, align_to=_EPOCH)
_counts = windowing.count_window("count", _hits, _clock, _windows, key=lambda hit: hit[0])
_results = op.map("result", _counts.down, _result)
kop.output("results", _results, brokers=[_job["broker"]], topic=_job["target"])
