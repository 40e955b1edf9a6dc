"""Exports spans and metrics of a process to a collector of OpenTelemetry, by OTLP over gRPC."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import CollectorRegistry

from millwheel.telemetry.metrics import metrics_of
from millwheel.telemetry.spans import OtelSpans

__all__ = ["OtlpSettings", "exporting"]

log = logging.getLogger("millwheel")


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """What a process exports.

    ``endpoint``: the collector, as http://host:port, or https:// with TLS. ``delay``: seconds for which spans are
    gathered. ``metrics``: seconds between two exports of metrics; 0: none.
    """

    endpoint: str
    delay: float = 5.0
    metrics: float = 0.0


@asynccontextmanager
async def exporting(
    settings: OtlpSettings, role: str, instance: str, registry: CollectorRegistry, *, for_hooks: bool = False
) -> AsyncIterator[OtelSpans]:
    """Export while the block runs. Yields what starts spans.

    Args:
        settings: Where to, and how often.
        role: The role of the process.
        instance: Its address.
        registry: The metrics of the process.
        for_hooks: Whether spans that hooks start by the API of OpenTelemetry are exported, too.
    """
    resource = Resource.create(
        {"service.name": f"millwheel-{role}", "service.instance.id": instance, "service.version": _version()}
    )
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=settings.endpoint)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=settings.delay * 1e3))
    if for_hooks:
        trace.set_tracer_provider(provider)
    metrics = None
    if settings.metrics:
        metrics = asyncio.create_task(_export_metrics(settings, resource, registry))
    try:
        yield OtelSpans(provider.get_tracer("millwheel", _version()))
    finally:
        if metrics is not None:
            metrics.cancel()
            await asyncio.gather(metrics, return_exceptions=True)
        # It exports what is left, and blocks for some seconds if the collector does not answer.
        await asyncio.to_thread(provider.shutdown)


async def _export_metrics(settings: OtlpSettings, resource: Resource, registry: CollectorRegistry) -> None:
    """Export the metrics periodically, and once more at the end. The exporter logs what fails, and goes on."""
    exporter, began = OTLPMetricExporter(endpoint=settings.endpoint), time.time_ns()

    def export() -> None:
        exporter.export(metrics_of(registry, resource, began))

    try:
        while True:
            await asyncio.sleep(settings.metrics)
            await asyncio.to_thread(export)
    finally:
        await asyncio.to_thread(export)
        await asyncio.to_thread(exporter.shutdown)


def _version() -> str:
    try:
        return version("openmillwheel")
    except PackageNotFoundError:
        return "unknown"
