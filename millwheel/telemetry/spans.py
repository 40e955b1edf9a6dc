"""Spans by the API of OpenTelemetry, with the attributes of its conventions for messaging (docs/tracing.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TraceState,
)

from millwheel.model.traces import Operation, TraceContext

__all__ = ["OtelSpan", "OtelSpans", "context_of"]

_KINDS: Final = {
    Operation.SEND: SpanKind.PRODUCER,
    Operation.RECEIVE: SpanKind.CONSUMER,
    Operation.PROCESS: SpanKind.CONSUMER,
    Operation.FIRE: SpanKind.INTERNAL,
    Operation.COMMIT: SpanKind.INTERNAL,
}
_OF_STREAMS: Final = frozenset({Operation.SEND, Operation.RECEIVE, Operation.PROCESS})
"""Operations whose name is a stream. They have the attributes of messaging."""


def context_of(span: SpanContext) -> TraceContext | None:
    """What travels with a record to continue the trace of ``span``. None if that is not valid, or not sampled."""
    if not span.is_valid or not span.trace_flags.sampled:
        return None
    flags = f"{span.trace_flags:02x}"
    return TraceContext(f"00-{span.trace_id:032x}-{span.span_id:016x}-{flags}", span.trace_state.to_header())


def _span_of(context: TraceContext) -> SpanContext:
    """The opposite of ``context_of``. The context has been checked when it was received."""
    _, trace_id, span_id, flags = context.traceparent.split("-")
    state = TraceState.from_header([context.tracestate]) if context.tracestate else None
    return SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)), state)


def _parent(context: TraceContext | None) -> Context:
    """The context of OpenTelemetry that has the span as its current one. None: it has none, so a new trace begins."""
    if context is None:
        return Context()
    return trace.set_span_in_context(NonRecordingSpan(_span_of(context)), Context())


class OtelSpan:
    """A span of OpenTelemetry, as a :class:`~millwheel.model.traces.RecordSpan`."""

    __slots__ = ("_span", "context")

    def __init__(self, span: Span) -> None:
        self._span = span
        self.context: TraceContext | None = context_of(span.get_span_context())

    def event(self, name: str, **attributes: str | int) -> None:
        """Add an event."""
        if self._span.is_recording():
            self._span.add_event(name, {f"millwheel.{key}": value for key, value in attributes.items()})

    def end(self, error: str = "") -> None:
        """End the span."""
        if not self._span.is_recording():
            return
        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()

    def current(self) -> AbstractContextManager[Span]:
        """The span is the current one of OpenTelemetry."""
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)


class OtelSpans:
    """Starts spans of one tracer, as a :class:`~millwheel.model.traces.SpanSource`."""

    def __init__(self, tracer: Tracer, attributes: Mapping[str, str | int] | None = None) -> None:
        self._tracer = tracer
        self._attributes = {"messaging.system": "millwheel"} if attributes is None else attributes
        self._kinds: dict[tuple[Operation, str], tuple[str, SpanKind, dict[str, str | int]]] = {}
        """By operation and name, which are few: the name, the kind and the attributes of such spans."""

    def about(self, attributes: Mapping[str, str | int]) -> OtelSpans:
        """A source whose spans have these attributes, too."""
        return OtelSpans(self._tracer, {**self._attributes, **attributes})

    def start(
        self,
        operation: Operation,
        name: str,
        parent: TraceContext | None = None,
        *,
        links: Sequence[TraceContext] = (),
        size: int | None = None,
        more: Mapping[str, str | int] | None = None,
    ) -> OtelSpan:
        """Start a span. It is not the current one."""
        title, kind, attributes = self._kinds.get((operation, name)) or self._kind(operation, name)
        if size is not None:
            attributes = {**attributes, "messaging.message.body.size": size, **(more or {})}
        causes = [Link(_span_of(one)) for one in links] if links else None
        return OtelSpan(self._tracer.start_span(title, _parent(parent), kind, attributes, causes))

    def _kind(self, operation: Operation, name: str) -> tuple[str, SpanKind, dict[str, str | int]]:
        attributes = dict(self._attributes)
        if operation in _OF_STREAMS:
            attributes |= {
                "messaging.operation.name": operation.value,
                "messaging.operation.type": operation.value,
                "messaging.destination.name": name,
            }
        made = self._kinds[operation, name] = (f"{operation.value} {name}", _KINDS[operation], attributes)
        return made
