"""The HTTP page of a process: metrics for Prometheus, and probes for systems that restart it or send it calls.

``/metrics`` has the metrics, ``/healthz`` says whether the process works, ``/readyz`` whether it serves its role. A
thread of its own serves them, so they answer while a hook blocks the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from threading import Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import TlsFiles

__all__ = ["ProcessHealth", "register_name", "register_process", "serve_status"]

log = logging.getLogger("millwheel")

BLOCKED_SECONDS: Final = 60.0
"""From this time on a blocked event loop counts as a failure. A worker's usual lease is over long before."""
_BEAT_SECONDS: Final = 1.0
_REQUEST_SECONDS: Final = 10.0
"""The time limit of a TLS handshake, and of each wait for a request."""
_CERTIFIED: Final = "millwheel.certified"
"""The entry of a request's environment that says whether the client may read the metrics."""


class ProcessHealth:
    """What the probes answer. Any thread may ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.waits_for = "it is starting"
        """Why the process does not serve. Empty: it serves."""
        self._clock = clock
        self._beaten = clock()

    def beat(self) -> None:
        """The event loop runs."""
        self._beaten = self._clock()

    async def beat_for_ever(self) -> None:
        """Beat each second, until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(_BEAT_SECONDS)

    def failure(self) -> str:
        """Why the process should be restarted. Empty: it works."""
        blocked = self._clock() - self._beaten
        return "" if blocked < BLOCKED_SECONDS else f"the event loop has been blocked for {blocked:.0f} s"


def register_process(registry: CollectorRegistry, health: ProcessHealth) -> None:
    """Add the metrics that every process has. Call it on the event loop."""
    ProcessCollector(registry=registry)
    ready = Gauge("millwheel_ready", "Whether the process serves its role: 1 or 0", registry=registry)
    ready.set_function(lambda: float(not health.waits_for))
    tasks = Gauge("millwheel_tasks", "asyncio tasks that have not ended", registry=registry)
    loop = asyncio.get_running_loop()
    tasks.set_function(lambda: len(asyncio.all_tasks(loop)))


def register_name(registry: CollectorRegistry, process: str) -> None:
    """Add the metric that has the name and address of this process, as ``cluster health`` shows them."""
    name = "millwheel_process_info"
    Gauge(name, "1; the label process is its name and address", ["process"], registry=registry).labels(process).set(1)


def serve_status(
    stack: ExitStack,
    registry: CollectorRegistry,
    health: ProcessHealth,
    host: str,
    port: int,
    tls: TlsFiles | None = None,
) -> int:
    """Serve the page until ``stack`` closes.

    Args:
        stack: Ends the page.
        registry: The metrics.
        health: What the probes answer.
        host: The host name or address to listen on.
        port: The port; 0 takes a free one.
        tls: The cluster's certificates. Then the metrics need one of the client's. The probes need none, because
            Kubernetes shows none.

    Returns:
        The port.

    Raises:
        RequestError: The port is not available.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        server = make_server(str(found[0][4][0]), port, _page(registry, health), _PageServer, _PageHandler)
    except OSError as error:
        raise RequestError(
            FailureCode.UNAVAILABLE,
            f"cannot serve metrics on {host}:{port}: {error.strerror or error}",
            "stop the process that has the port, or choose another --metrics-port",
            reason="PORT_UNAVAILABLE",
        ) from error
    server.tls = None if tls is None else tls.server_context(ssl.CERT_OPTIONAL)
    thread = Thread(target=server.serve_forever, name="status-page", daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
    return int(server.server_port)


def _page(registry: CollectorRegistry, health: ProcessHealth) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    metrics = make_wsgi_app(registry)

    def page(request: dict[str, Any], start: Any) -> Iterable[bytes]:
        match request["PATH_INFO"]:
            case "/healthz":
                return _probe(start, health.failure())
            case "/readyz":
                return _probe(start, health.failure() or health.waits_for)
            case "/" | "/metrics" if request[_CERTIFIED]:
                return metrics(request, start)  # type: ignore[no-any-return]
            case "/" | "/metrics":
                return _answer(start, "403 Forbidden", "metrics need a certificate of the cluster")
            case _:
                return _answer(start, "404 Not Found", "here are /metrics, /healthz and /readyz")

    return page


def _probe(start: Any, problem: str) -> Iterable[bytes]:
    return _answer(start, "503 Service Unavailable" if problem else "200 OK", problem or "ok")


def _answer(start: Any, status: str, text: str) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]


class _PageServer(ThreadingWSGIServer):
    """Serves each connection in a thread. So a client that sends nothing delays no other client."""

    tls: ssl.SSLContext | None = None

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a connection that failed: its handshake, or its client went away."""
        log.debug("a request of %s to the status page failed", client_address, exc_info=True)


class _PageHandler(WSGIRequestHandler):
    """Handles one connection, with its handshake if the page has TLS."""

    server: _PageServer
    timeout = _REQUEST_SECONDS

    def setup(self) -> None:
        """Make the handshake."""
        if self.server.tls is not None:
            self.request.settimeout(_REQUEST_SECONDS)
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self) -> None:
        """Close the connection. The server closes only the socket that it accepted."""
        super().finish()
        if self.server.tls is not None:
            self.request.close()

    def get_environ(self) -> dict[str, Any]:
        """Add whether the client may read the metrics."""
        certified = self.server.tls is None or bool(self.request.getpeercert())
        return {**super().get_environ(), _CERTIFIED: certified}

    def log_message(self, *_: Any) -> None:
        """Do not log each request."""
