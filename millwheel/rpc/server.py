"""The gRPC servers of all roles: limits, keepalive, health, reflection, and a clear error if a port is in use."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from millwheel.rpc.channel import MAX_MESSAGE_BYTES
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import TlsFiles
from millwheel.rpc.parsing import Parsing
from millwheel.rpc.security import server_credentials

__all__ = [
    "LOOPBACK",
    "SERVER_OPTIONS",
    "add_health",
    "bind",
    "create_server",
    "set_health",
]

LOOPBACK: Final = "127.0.0.1"
"""Where servers listen by default. Loopback keeps out other machines."""

SERVER_OPTIONS: Final[Sequence[tuple[str, int]]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    # With this option two servers on one port would share its connections at random.
    ("grpc.so_reuseport", 0),
)


def create_server(interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]] = ()) -> grpc.aio.Server:
    """Return a server with MillWheel's limits. Add services to it, then :func:`bind` it."""
    return grpc.aio.server(options=list(SERVER_OPTIONS), interceptors=[*interceptors, Parsing()])


def bind(server: grpc.aio.Server, port: int = 0, host: str = LOOPBACK, tls: TlsFiles | None = None) -> str:
    """Let ``server`` listen, and return its address.

    Args:
        server: the server, with its services.
        port: the port; 0 takes a free one.
        host: the host name or IP address to listen on.
        tls: the TLS files; None: no TLS.

    Returns:
        ``host:port``.

    Raises:
        RequestError: UNAVAILABLE, with the port, if the port cannot be used.
    """
    shown = f"[{host}]" if ":" in host else host
    if port:
        _check_free(host, port)
    try:
        if tls is None:
            bound = server.add_insecure_port(f"{shown}:{port}")
        else:
            bound = server.add_secure_port(f"{shown}:{port}", server_credentials(tls))
    except RuntimeError as error:
        raise _unusable(host, port, str(error)) from error
    if bound == 0:
        raise _unusable(host, port, "the port could not be bound")
    return f"{shown}:{bound}"


def _check_free(host: str, port: int) -> None:
    """Raise RequestError if the port is in use. gRPC's own error for a failed bind names neither cause nor port."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise _unusable(host, port, f"the name does not resolve ({error.strerror})") from error
    for family, _, _, _, address in found:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    remedy = "stop the process that has it, or choose another port (0 takes a free one)"
                    raise _unusable(host, port, "the port is in use", remedy) from error
                raise _unusable(host, port, error.strerror or str(error)) from error


def _unusable(
    host: str, port: int, why: str, remedy: str = "name an address of this machine, and a port that you may have"
) -> RequestError:
    return RequestError(
        FailureCode.UNAVAILABLE, f"cannot listen on {host}:{port}: {why}", remedy, reason="PORT_UNAVAILABLE"
    )


async def add_health(server: grpc.aio.Server, services: Sequence[str], *, serving: bool = True) -> HealthServicer:
    """Add grpc.health.v1 for ``services`` (full names) and for the whole server, and reflection for all of them."""
    servicer = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await set_health(servicer, services, serving)
    reflection.enable_server_reflection([*services, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    return servicer


async def set_health(servicer: HealthServicer, services: Sequence[str], serving: bool) -> None:
    """Set whether ``services``, and the server as a whole, are reported as serving."""
    status = health_pb2.HealthCheckResponse
    for name in ["", *services]:
        await servicer.set(name, status.SERVING if serving else status.NOT_SERVING)
