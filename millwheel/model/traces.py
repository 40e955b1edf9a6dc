"""Traces of sampled records: the context that travels with a record, and what starts spans (docs/tracing.md).

Invariant: no decision depends on a trace. No id, order, comparison or stored value contains one. So a trace may be lost
at any time, and a process that does not know traces ignores them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Final, NamedTuple, Protocol

__all__ = ["Operation", "RecordSpan", "RecordTraces", "SpanSource", "TraceContext", "checked_context"]

_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_STATE: Final = 512
"""The length of a tracestate that W3C Trace Context asks everyone to pass on. A longer one is dropped."""


class TraceContext(NamedTuple):
    """A span of a trace, in the format of W3C Trace Context. It is the parent of what happens next to the record."""

    traceparent: str
    tracestate: str = ""


RecordTraces = Mapping[int, TraceContext]
"""The contexts of sampled records, by their index in the columns of a message. Most messages have none."""


def checked_context(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """The context that another process has sent. None if it is not valid: then the record has no trace.

        >>> checked_context("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").traceparent[:6]
        '00-0af'
        >>> checked_context("no context") is None
        True

    Args:
        traceparent: The version, the trace's id, the span's id and the flags.
        tracestate: What the tracing systems on the way have added.
    """
    if _TRACEPARENT.fullmatch(traceparent) is None:
        return None
    return TraceContext(traceparent, tracestate if len(tracestate) <= _MAX_STATE else "")


class Operation(Enum):
    """What a span is about. A span's name is the operation and a name that people gave."""

    SEND = "send"
    """From the record's creation to its ACK, at the sender."""
    RECEIVE = "receive"
    """From the arrival of the record to its ACK, at the receiver."""
    PROCESS = "process"
    """One call of a hook for a record."""
    FIRE = "fire"
    """One call of a hook for a timer."""
    COMMIT = "commit"
    """The append of the commit that contains the record."""


class RecordSpan(Protocol):
    """A span that has begun."""

    @property
    def context(self) -> TraceContext | None:
        """What travels with the record. None: the span is not sampled, so nothing travels."""

    def event(self, name: str, **attributes: str | int) -> None:
        """Something has happened now. A span that has ended ignores it."""

    def end(self, error: str = "") -> None:
        """The span ends now. ``error`` names a failure, without data of users. Idempotent."""

    def current(self) -> AbstractContextManager[object]:
        """Within the context, spans that user code starts are children of this one."""


class SpanSource(Protocol):
    """Starts spans."""

    def about(self, attributes: Mapping[str, str | int]) -> SpanSource:
        """A source whose spans have these attributes, too."""

    def start(
        self,
        operation: Operation,
        name: str,
        parent: TraceContext | None = None,
        *,
        links: Sequence[TraceContext] = (),
        size: int | None = None,
        more: Mapping[str, str | int] | None = None,
    ) -> RecordSpan:
        """Start a span.

        Args:
            operation: What it is about.
            name: The stream or the computation.
            parent: The span that caused it. None: it begins a trace.
            links: Further causes.
            size: The bytes of the record's value. Set for a span that is about one.
            more: More attributes of a span with a size.
        """
