"""Metrics of a gRPC server: time and outcome of calls, by method."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from inspect import isasyncgenfunction
from typing import Any, Final

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from millwheel.rpc.gate import Interceptor
from millwheel.rpc.parsing import wrapped

__all__ = ["REQUEST_BUCKETS", "Measuring"]

REQUEST_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""The bounds of the histograms of requests, in seconds. The longest time limit of a request is about ten seconds."""

_PACKAGE: Final = "/millwheel.v1."


class Measuring(Interceptor):
    """Measures every call of a method that the server has.

    A call with one response counts with its time. One with a stream of responses may last for days, so it counts when
    it ends, and as open until then. Records on a stream are counted by the metrics of their computation.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "millwheel_rpc_seconds",
            "Time of calls with one response, by method and status",
            ["method", "code"],
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self._streams = Counter(
            "millwheel_rpc_streams_total",
            "Calls with a stream of responses that have ended, by method and status",
            ["method", "code"],
            registry=registry,
        )
        self._open = Gauge("millwheel_rpc_open_calls", "Calls that have not ended", ["method"], registry=registry)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the call's handler, which measures the call."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return handler  # type: ignore[return-value]  # the server does not have this method
        method = handler_call_details.method.removeprefix(_PACKAGE).removeprefix("/")
        wrappers = {"unary_unary": self._one, "stream_unary": self._one}
        wrappers |= {"unary_stream": self._many, "stream_stream": self._many}
        return wrapped(handler, wrappers, method, handler.request_deserializer)

    def _one(self, method: str, behave: Any) -> Any:
        def ended(code: str, seconds: float) -> None:
            self._seconds.labels(method, code).observe(seconds)

        async def call(request: Any, context: Any) -> Any:
            with self._measured(method, context, ended):
                return await behave(request, context)

        return call

    def _many(self, method: str, behave: Any) -> Any:
        def ended(code: str, _: float) -> None:
            self._streams.labels(method, code).inc()

        async def yields(request: Any, context: Any) -> AsyncIterator[Any]:
            with self._measured(method, context, ended):
                async with aclosing(behave(request, context)) as responses:
                    async for response in responses:
                        yield response

        async def writes(request: Any, context: Any) -> None:
            with self._measured(method, context, ended):
                await behave(request, context)

        return yields if isasyncgenfunction(behave) else writes

    @contextmanager
    def _measured(self, method: str, context: Any, ended: Callable[[str, float], None]) -> Iterator[None]:
        """Count a call as open. ``ended`` gets its status and its seconds."""
        began, opened, code = time.perf_counter(), self._open.labels(method), "CANCELLED"
        opened.inc()
        try:
            yield
            code = "OK"
        except Exception:
            # The status that the service has aborted with, or what gRPC answers when a service raises.
            code = grpc.StatusCode(context.code() or grpc.StatusCode.UNKNOWN).name
            raise
        finally:
            opened.dec()
            ended(code, time.perf_counter() - began)
