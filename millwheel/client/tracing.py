"""Traces of the records that this process injects, and of those that its subscriptions receive (docs/tracing.md).

A program asks for them by :func:`trace_records`. Without that call nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from millwheel.model.traces import SpanSource, TraceContext
from millwheel.sdk.errors import UsageError

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["ClientTracing", "RecordSampler", "client_tracing", "stop_tracing", "trace_records"]


class RecordSampler:
    """Chooses records at random. It costs nothing for a record that is not chosen: it draws how many to skip."""

    def __init__(self, ratio: float, chance: Callable[[], float]) -> None:
        """
        Args:
            ratio: The fraction of records to choose, from 0 to 1.
            chance: Returns random numbers from 0 to below 1.
        """
        self._ratio = ratio
        self._chance = chance
        self._skip: float = self._draw()

    def picks(self, count: int) -> list[int]:
        """The chosen ones of the next ``count`` records, by their index."""
        found: list[int] = []
        at = self._skip
        while at < count:
            found.append(int(at))
            at += 1 + self._draw()
        self._skip = at - count
        return found

    def _draw(self) -> float:
        """How many records come before the next chosen one: geometrically distributed."""
        if self._ratio >= 1:
            return 0
        if self._ratio <= 0:
            return math.inf
        return math.floor(math.log1p(-self._chance()) / math.log1p(-self._ratio))


class ClientTracing:
    """How this process traces."""

    def __init__(self, spans: SpanSource, sampler: RecordSampler, caller: Callable[[], TraceContext | None]) -> None:
        """
        Args:
            spans: Starts spans.
            sampler: Chooses records. All injectors of the process share it.
            caller: The program's own current span. None: there is none, or it is not sampled.
        """
        self.spans = spans
        self.sampler = sampler
        self.caller = caller


_tracing: ClientTracing | None = None


def trace_records(sample_ratio: float = 0.0, provider: TracerProvider | None = None) -> None:
    """Trace records that this process sends, and those that its subscriptions receive. Call it before opening these.

    A record has a trace if the program sends it within a sampled span of its own. Of all others, ``sample_ratio`` have
    one that begins with the record. The program configures OpenTelemetry: which spans are exported, and where to.

        >>> trace_records(sample_ratio=0.001)
        >>> stop_tracing()

    Args:
        sample_ratio: The fraction of records that begin a trace, from 0 to 1.
        provider: Makes the tracer. None: the global one of OpenTelemetry.

    Raises:
        UsageError: The fraction is out of range, or OpenTelemetry is not installed.
    """
    global _tracing
    if not 0 <= sample_ratio <= 1:
        raise UsageError(f"sample_ratio is a fraction from 0 to 1, not {sample_ratio!r}")
    try:
        from opentelemetry import trace

        from millwheel.telemetry.spans import OtelSpans, context_of
    except ImportError as error:
        raise UsageError("traces need OpenTelemetry: install MillWheel with the extra otel") from error

    def caller() -> TraceContext | None:
        return context_of(trace.get_current_span().get_span_context())

    tracer = trace.get_tracer("millwheel", tracer_provider=provider)
    _tracing = ClientTracing(OtelSpans(tracer), RecordSampler(sample_ratio, random.random), caller)


def stop_tracing() -> None:
    """Trace no records of injectors and subscriptions that are opened from now on."""
    global _tracing
    _tracing = None


def client_tracing() -> ClientTracing | None:
    """How this process traces. None: it does not."""
    return _tracing
