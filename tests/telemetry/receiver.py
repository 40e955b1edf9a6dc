"""A collector of OpenTelemetry: it receives spans and metrics by OTLP over gRPC, and keeps them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from millwheel.client.tracing import stop_tracing, trace_records
from tests.serving import LoopbackServer


@dataclass
class Received:
    """What the processes have exported."""

    endpoint: str = ""
    spans: dict[bytes, Span] = field(default_factory=dict)
    services: dict[bytes, str] = field(default_factory=dict)
    """By the id of a span: the name of the service that sent it."""
    metrics: dict[str, Metric] = field(default_factory=dict)

    def named(self, name: str) -> list[Span]:
        """The spans with a name."""
        return [span for span in self.spans.values() if span.name == name]

    def names(self) -> Counter[str]:
        """How many spans have each name."""
        return Counter(span.name for span in self.spans.values())

    def traces(self) -> set[bytes]:
        """The ids of all traces."""
        return {span.trace_id for span in self.spans.values()}

    def roots(self) -> list[Span]:
        """The spans that begin a trace."""
        return [span for span in self.spans.values() if not span.parent_span_id]

    def orphans(self) -> list[str]:
        """The names of spans whose parent was not received."""
        spans = self.spans
        return [one.name for one in spans.values() if one.parent_span_id and one.parent_span_id not in spans]


class _Traces(trace_grpc.TraceServiceServicer):
    def __init__(self, received: Received) -> None:
        self._received = received

    async def Export(self, request: Any, context: Any) -> Any:
        for of_process in request.resource_spans:
            service = next(one for one in of_process.resource.attributes if one.key == "service.name")
            for span in (span for scope in of_process.scope_spans for span in scope.spans):
                self._received.spans[span.span_id] = span
                self._received.services[span.span_id] = service.value.string_value
        return trace_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, received: Received) -> None:
        self._received = received

    async def Export(self, request: Any, context: Any) -> Any:
        for of_process in request.resource_metrics:
            for metric in (metric for scope in of_process.scope_metrics for metric in scope.metrics):
                self._received.metrics[metric.name] = metric
        return metrics_pb2.ExportMetricsServiceResponse()


@asynccontextmanager
async def receiver() -> AsyncIterator[Received]:
    """Receive while the block runs."""
    received = Received()
    server = LoopbackServer(
        lambda server: trace_grpc.add_TraceServiceServicer_to_server(_Traces(received), server),  # type: ignore[no-untyped-call]
        lambda server: metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(received), server),  # type: ignore[no-untyped-call]
    )
    async with server as address:
        received.endpoint = f"http://{address}"
        yield received


@contextmanager
def client_traces(endpoint: str, sample_ratio: float = 1.0) -> Iterator[TracerProvider]:
    """This process traces its records, and exports the spans at once."""
    provider = TracerProvider(resource=Resource.create({"service.name": "program"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint), schedule_delay_millis=50))
    trace_records(sample_ratio, provider)
    try:
        yield provider
    finally:
        stop_tracing()


def attributes_of(span: Span) -> dict[str, str | int]:
    """The attributes of a span."""
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


def tree_of(received: Received) -> str:
    """All spans as text: each below its parent, in the order of their beginnings, with its events."""
    children: dict[bytes, list[Span]] = {}
    for span in sorted(received.spans.values(), key=lambda one: one.start_time_unix_nano):
        known = span.parent_span_id if span.parent_span_id in received.spans else b""
        children.setdefault(known, []).append(span)
    first = min((span.start_time_unix_nano for span in received.spans.values()), default=0)
    lines: list[str] = []

    def show(span: Span, depth: int) -> None:
        began = (span.start_time_unix_nano - first) / 1e6
        took = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
        attributes = attributes_of(span)
        where = attributes.get("millwheel.computation") or attributes.get("millwheel.log") or ""
        events = "".join(f" ({event.name})" for event in span.events)
        links = f" [{len(span.links)} links]" if span.links else ""
        name = "  " * depth + span.name
        service = received.services[span.span_id]
        lines.append(f"{name:<34} {began:8.1f} ms {took:8.1f} ms  {service:<18} {where}{events}{links}".rstrip())
        for child in children.get(span.span_id, ()):
            show(child, depth + 1)

    for root in children.get(b"", ()):
        show(root, 0)
    return "\n".join(lines)
