"""An interval whose deliveries have sampled records. Its spans are in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import millwheel as mw
from millwheel.model.traces import Operation, TraceContext
from millwheel.telemetry.spans import OtelSpans
from millwheel.worker.interval.hook_meter import HookMeter
from millwheel.worker.interval.traces import IntervalTraces
from millwheel.worker.messages import Delivery
from tests.worker.interval.driver import IntervalDriver


class MemorySpans:
    """Spans that this test has ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        self.source = OtelSpans(self.tracer)

    def sent(self, stream: str = "in") -> TraceContext:
        """The context of a record that another process has sent."""
        span = self.source.start(Operation.SEND, stream)
        assert span.context is not None
        return span.context

    def __iter__(self) -> Iterator[ReadableSpan]:
        return iter(self._exporter.get_finished_spans())

    def names(self) -> list[str]:
        """The names of the spans in the order of their ends, with their events in brackets."""
        return [self.text(span) for span in self]

    @staticmethod
    def text(span: ReadableSpan) -> str:
        """The name and the events of a span."""
        events = ", ".join(event.name for event in span.events)
        return f"{span.name} ({events})" if events else span.name

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans with a name."""
        return [span for span in self if span.name == name]


class TracedDriver(IntervalDriver):
    """Records are sampled if ``sampled`` says so of their text."""

    def __init__(
        self,
        computation: mw.Computation[Any, Any],
        sampled: Callable[[str], bool] = lambda what: True,
        spans: MemorySpans | None = None,
        **options: Any,
    ) -> None:
        self.spans = spans or MemorySpans()
        self.traces = IntervalTraces(self.spans.source, "test", "test.1.j1")
        self._sampled = sampled
        super().__init__(computation, meter=HookMeter(traces=self.traces), **options)

    def post(self, event: Any) -> Sequence[Any]:
        """Pass the core an event, as ``TracedCore`` does."""
        if isinstance(event, Delivery):
            texts = [value.decode(errors="replace") for value in event.values]
            found = {index: self.spans.sent() for index, text in enumerate(texts) if self._sampled(text)}
            event.traces = found or None
        self.traces.before(event)
        effects = super().post(event)
        for effect in effects:
            self.traces.after(effect)
        return effects
