"""Whether this process exports spans and metrics by OTLP. If it does not, nothing of OpenTelemetry is imported."""

from __future__ import annotations

from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from millwheel.config import OtlpSection
from millwheel.model.traces import SpanSource
from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["open_telemetry"]


async def open_telemetry(
    stack: AsyncExitStack, section: OtlpSection, role: str, instance: str, registry: CollectorRegistry, for_hooks: bool
) -> SpanSource | None:
    """Export as the settings say, until ``stack`` ends. Returns what starts spans; None: the process has none.

    Raises:
        RequestError: OpenTelemetry is not installed.
    """
    if not section.endpoint:
        return None
    try:
        from millwheel.telemetry.otlp import OtlpSettings, exporting
    except ImportError as error:
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"otlp.endpoint is set, and OpenTelemetry is not installed: {error}",
            "install MillWheel with the extra otel",
        ) from error
    settings = OtlpSettings(section.endpoint, section.delay_seconds, section.metrics_seconds)
    spans = await stack.enter_async_context(exporting(settings, role, instance, registry, for_hooks=for_hooks))
    return spans if section.traces else None
