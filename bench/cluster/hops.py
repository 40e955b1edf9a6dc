"""A record's way through the cluster: who waits for whom, and for how long (8.1). The times are those of traces.

Two computations with different keys run on two workers, as for the latency of a stage, with 500 records/s. Some records
are sampled. Each part of the way lies between two moments of their spans (docs/tracing.md). All processes have the
clock of one machine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from bench.cluster import stage_latency
from bench.cluster.measures import percentile
from bench.cluster.system import Components, Say, system
from bench.report import Figure

__all__ = ["PARTS", "SpanTimes", "durations", "measure"]

_RATIO: Final = 0.04
"""The share of records that are sampled: 20 a second."""
_OF: Final = "stage-strong/"

Moment = tuple[str, str]
"""The name of a span, and "began" or "ended"."""


class SpanTimes(NamedTuple):
    """When a span began and ended, in nanoseconds, and its trace."""

    trace: bytes
    name: str
    began: int
    ended: int


def _part(stage: str, stream: str, after: str) -> dict[str, tuple[Moment, Moment]]:
    """The parts of the way within the interval of a computation, and to the next one."""
    received, hook, commit = f"receive {_OF}{stream}", f"process {_OF}{stream}", f"commit {stage}"
    return {
        f"{stage}.queue": ((received, "began"), (hook, "began")),
        f"{stage}.hook": ((hook, "began"), (commit, "began")),
        f"{stage}.append": ((commit, "began"), (commit, "ended")),
        f"{stage}.delivery": ((commit, "ended"), (f"receive {_OF}{after}", "began")),
    }


PARTS: Final[dict[str, tuple[Moment, Moment]]] = {
    "injector.delivery": ((f"send {_OF}pings", "began"), (f"receive {_OF}pings", "began")),
    **_part("first", "pings", "by-page"),
    **_part("second", "by-page", "results"),
    "probe.queue": ((f"receive {_OF}results", "began"), (f"process {_OF}results", "began")),
    "whole": ((f"send {_OF}pings", "began"), (f"process {_OF}results", "began")),
}
"""The parts of the way, in order, and the whole. Each ends where the next one begins."""


def durations(spans: Iterable[SpanTimes]) -> dict[str, list[float]]:
    """By part of the way: its milliseconds in each trace that has all spans once."""
    traces: dict[bytes, dict[str, list[SpanTimes]]] = {}
    for span in spans:
        traces.setdefault(span.trace, {}).setdefault(span.name, []).append(span)
    wanted = {name for moments in PARTS.values() for name, _ in moments}
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    for by_name in traces.values():
        if any(len(by_name.get(name, ())) != 1 for name in wanted):
            continue
        for part, (start, end) in PARTS.items():
            nanos = [getattr(by_name[name][0], edge) for name, edge in (start, end)]
            found[part].append((nanos[1] - nanos[0]) / 1e6)
    return found


async def measure(components: Components, say: Say, warm: float, seconds: float) -> list[Figure]:
    """Run the stage with traces. RuntimeError: no record was traced from its begin to its end."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from millwheel.client.tracing import stop_tracing, trace_records

    async with _collector() as (endpoint, spans):
        settings = f'\n[otlp]\nendpoint = "{endpoint}"\ndelay_seconds = 0.5\n'
        async with system(components, say, 2, more=settings) as running:
            provider, own = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
            provider.add_span_processor(SimpleSpanProcessor(own))
            await stage_latency.measure(running, "strong", warm, 1.0)
            spans.clear()
            trace_records(_RATIO, provider)
            try:
                await stage_latency.measure(running, "strong", 1.0, seconds)
            finally:
                stop_tracing()
        # The daemons have ended in order, and have sent all of their spans.
    for one in own.get_finished_spans():
        if one.context is not None and one.start_time is not None and one.end_time is not None:
            spans.append(SpanTimes(one.context.trace_id.to_bytes(16, "big"), one.name, one.start_time, one.end_time))
    found = durations(spans)
    if not found["whole"]:
        raise RuntimeError("no record was traced from its begin to its end")
    say(f"{len(found['whole'])} records were traced")
    return [
        Figure(f"hops.{part}.{name}_ms", value := percentile(millis, share), "ms", (value,))
        for part, millis in found.items()
        for name, share in (("p10", 0.1), ("p50", 0.5), ("p95", 0.95))
    ]


@asynccontextmanager
async def _collector() -> AsyncIterator[tuple[str, list[SpanTimes]]]:
    """A collector of OpenTelemetry: its endpoint, and the spans that it has received so far."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services

    received: list[SpanTimes] = []

    class Collector(services.TraceServiceServicer):
        async def Export(self, request: Any, context: Any) -> Any:
            for scope in (scope for process in request.resource_spans for scope in process.scope_spans):
                for one in scope.spans:
                    times = one.start_time_unix_nano, one.end_time_unix_nano
                    received.append(SpanTimes(one.trace_id, one.name, *times))
            return messages.ExportTraceServiceResponse()

    server = grpc.aio.server()
    services.add_TraceServiceServicer_to_server(Collector(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"http://127.0.0.1:{port}", received
    finally:
        await server.stop(1.0)
