"""The HTTP page of a process: who may read what, and when its probes fail."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from millwheel.rpc.failures import RequestError
from millwheel.rpc.identity import TlsFiles
from millwheel.server.status_page import BLOCKED_SECONDS, ProcessHealth, serve_status
from tests.patience import patience

_HERE = Path(__file__).parents[1] / "rpc" / "certificates"
_TLS = TlsFiles(_HERE / "one-ca.pem", _HERE / "one.pem", _HERE / "one.key")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def page(health: ProcessHealth, tls: TlsFiles | None = None, host: str = "127.0.0.1") -> Iterator[int]:
    """A page with one metric, and its port."""
    registry = CollectorRegistry()
    Gauge("given", "A metric", registry=registry).set(7)
    with ExitStack() as stack:
        yield serve_status(stack, registry, health, host, 0, tls)


def get(connection: HTTPConnection, path: str) -> tuple[int, str]:
    """The status and the text of a path."""
    connection.request("GET", path)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def plain(port: int, host: str = "127.0.0.1") -> HTTPConnection:
    return HTTPConnection(host, port, timeout=patience(10))


def secured(port: int, shown: TlsFiles | None) -> HTTPSConnection:
    """A client that shows a certificate, or none."""
    context = ssl.create_default_context(cafile=str(_TLS.ca))
    if shown is not None:
        context.load_cert_chain(shown.cert, shown.key)
    return HTTPSConnection("localhost", port, timeout=patience(10), context=context)


def test_a_page_has_metrics_and_probes() -> None:
    health = ProcessHealth()
    with page(health) as port:
        assert "given 7.0" in get(plain(port), "/metrics")[1]
        assert get(plain(port), "/healthz") == (200, "ok\n")
        assert get(plain(port), "/readyz") == (503, "it is starting\n")
        health.waits_for = ""
        assert get(plain(port), "/readyz") == (200, "ok\n")
        assert get(plain(port), "/other") == (404, "here are /metrics, /healthz and /readyz\n")


def test_a_process_whose_event_loop_is_blocked_is_not_healthy() -> None:
    clock = Clock()
    health = ProcessHealth(clock)
    health.waits_for = ""
    with page(health) as port:
        clock.now = BLOCKED_SECONDS
        assert get(plain(port), "/healthz") == (503, "the event loop has been blocked for 60 s\n")
        assert get(plain(port), "/readyz")[0] == 503
        health.beat()
        assert get(plain(port), "/healthz")[0] == 200


def test_with_tls_metrics_need_a_certificate_and_probes_do_not() -> None:
    with page(ProcessHealth(), _TLS) as port:
        assert "given 7.0" in get(secured(port, _TLS), "/metrics")[1]
        assert get(secured(port, None), "/metrics") == (403, "metrics need a certificate of the cluster\n")
        assert get(secured(port, None), "/healthz") == (200, "ok\n")


def test_a_client_that_sends_nothing_delays_nobody() -> None:
    with page(ProcessHealth(), _TLS) as port, socket.create_connection(("127.0.0.1", port)):
        assert get(secured(port, None), "/healthz")[0] == 200


def test_a_page_listens_on_ipv6() -> None:
    with page(ProcessHealth(), host="::1") as port:
        assert get(plain(port, "::1"), "/healthz")[0] == 200


def test_a_port_in_use_is_named() -> None:
    with page(ProcessHealth()) as port, pytest.raises(RequestError, match=f"cannot serve metrics on 127.0.0.1:{port}"):
        serve_status(ExitStack(), CollectorRegistry(), ProcessHealth(), "127.0.0.1", port)
