"""A query of `examples/nexmark` as a topology of MillWheel, from a file of events to files of results.

What it reads and writes is in the environment of its processes: ``NEXMARK_QUERY``, ``_FROM``, ``_TO`` and
``_OUT_OF_ORDER_MS``.
"""

from __future__ import annotations

import os
from typing import Any, Final

import millwheel as mw
from examples.nexmark.events import Event
from examples.nexmark.queries import QUERIES
from millwheel import connectors

__all__ = ["SINK", "between_files", "nexmark"]

SINK: Final = "results"
"""The computation whose low watermark says that all is written."""
_EVENT: Final[Any] = Event
"""Any, because a choice of types is no `type[T]`, which sources that are read are declared with."""


def between_files(query: str, source: str, target: str, out_of_order: mw.Duration) -> mw.Topology:
    """A topology of one query.

    Args:
        query: Such as ``q5``.
        source: A file of JSON lines, each of them an event.
        target: The folder for files of JSON lines, each of them a result.
        out_of_order: How much older than the newest event a later one may be, in microseconds.
    """
    topology = mw.Topology("nexmark")
    files = connectors.read_files(source, _EVENT)
    events = topology.source("events", _EVENT, files, timestamp="at", out_of_order=out_of_order)
    results = QUERIES[query](events)
    results.to(SINK, connectors.write_files(target, results.record_type), batch_records=10_000)
    return topology


def _given(name: str, otherwise: str) -> str:
    return os.environ.get(f"NEXMARK_{name}", otherwise)


nexmark = between_files(
    _given("QUERY", "q0"),
    _given("FROM", "/tmp/events.jsonl"),
    _given("TO", "/tmp/results"),
    mw.milliseconds(int(_given("OUT_OF_ORDER_MS", "4000"))),
)
