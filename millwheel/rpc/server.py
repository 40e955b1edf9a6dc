"""gRPC servers as every role runs them: limits, keepalive, health, reflection, and a clear word on a taken port."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import TlsFiles
from millwheel.rpc.parsing import Parsing
from millwheel.rpc.security import server_credentials

__all__ = [
    "LOOPBACK",
    "MAX_MESSAGE_BYTES",
    "MAX_METADATA_BYTES",
    "SERVER_OPTIONS",
    "add_health",
    "bind",
    "create_server",
    "set_health",
]

LOOPBACK: Final = "127.0.0.1"
"""Where servers listen unless they are told otherwise: MillWheel has nothing to say to strangers by default."""

MAX_MESSAGE_BYTES: Final = 64 << 20
"""The largest message either side takes, in bytes."""

MAX_METADATA_BYTES: Final = 1 << 20
"""The most metadata that a client takes with a response, in bytes: what is wrong, when a call fails."""

SERVER_OPTIONS: Final[Sequence[tuple[str, int]]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    # Two servers on one port would share its connections at random.
    ("grpc.so_reuseport", 0),
)


def create_server(interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]] = ()) -> grpc.aio.Server:
    """A server with MillWheel's limits; add services, then :func:`bind` it."""
    return grpc.aio.server(options=list(SERVER_OPTIONS), interceptors=[*interceptors, Parsing()])


def bind(server: grpc.aio.Server, port: int = 0, host: str = LOOPBACK, tls: TlsFiles | None = None) -> str:
    """Have ``server`` listen, with TLS if ``tls`` is given; ``port`` 0 takes a free one. Returns ``host:port``.

    RequestError (UNAVAILABLE) names the port if it cannot be had.
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
    """gRPC's own message on a failed bind names neither cause nor port: ask the system first."""
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
    """Register grpc.health.v1 for ``services`` (full names) and the server as a whole, and reflection for them all."""
    servicer = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await set_health(servicer, services, serving)
    reflection.enable_server_reflection([*services, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    return servicer


async def set_health(servicer: HealthServicer, services: Sequence[str], serving: bool) -> None:
    """Have the health service say whether ``services``, and the server as a whole, serve."""
    status = health_pb2.HealthCheckResponse
    for name in ["", *services]:
        await servicer.set(name, status.SERVING if serving else status.NOT_SERVING)
