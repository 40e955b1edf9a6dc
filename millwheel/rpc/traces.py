"""Traces of sampled records as messages of common.proto. They are only called for messages that have some."""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.model.traces import RecordTraces, checked_context
from millwheel.rpc.v1.common_pb2 import RecordTrace

__all__ = ["read_traces", "wire_traces"]


def wire_traces(traces: RecordTraces) -> list[RecordTrace]:
    """The traces of a message's records."""
    return [
        RecordTrace(index=index, traceparent=context.traceparent, tracestate=context.tracestate)
        for index, context in traces.items()
    ]


def read_traces(traces: Iterable[RecordTrace]) -> RecordTraces:
    """The traces of a message's records, by index. A trace that is not valid is left out: its record has none."""
    read = ((one.index, checked_context(one.traceparent, one.tracestate)) for one in traces)
    return {index: context for index, context in read if context is not None}
