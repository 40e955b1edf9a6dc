"""The count as a dataflow of Bytewax between topics, whose logic is written by hand."""

from __future__ import annotations

import json
import os
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow

from bench.peers.programs.bytewax_counting import CountingLogic, WindowCount

__all__ = ["flow"]

_job: dict[str, Any] = json.loads(os.environ["PEER_JOB"])
_size_ms: int = _job["window_ms"]


def _hit(message: Any) -> tuple[str, tuple[int, None]]:
    """The key of a record, and its event time, which is Kafka's timestamp."""
    return orjson.loads(message.value)["key"], (message.timestamp[1], None)


def _result(counted: tuple[str, WindowCount]) -> Any:
    """The record of a count."""
    key, (end, count) = counted
    value = orjson.dumps({"key": key, "start": end - _size_ms, "count": count})
    return KafkaSinkMessage(key.encode(), value)


flow = Dataflow("count")
_read = kop.input("hits", flow, brokers=[_job["broker"]], topics=[_job["source"]])
_hits = op.map("key", _read.oks, _hit)
_counts = op.stateful_batch("count", _hits, lambda kept: CountingLogic(kept, _size_ms, _job["out_of_order_ms"]))
_results = op.map("result", _counts, _result)
kop.output("results", _results, brokers=[_job["broker"]], topic=_job["target"])
