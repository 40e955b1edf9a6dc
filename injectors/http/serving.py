"""Serves a gateway over HTTP or HTTPS, with a bound for everything that a client can hold (section 5.2)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from millwheel.config.addresses import is_loopback
from millwheel.injectors.http.bodies import BodyInflater, form_of, too_large
from millwheel.injectors.http.gateway import TIME_HEADER, GivenHeaders, HttpGateway
from millwheel.injectors.http.refusals import HttpRefusal, refusal_of
from millwheel.model.stream_names import owner_of
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import TlsFiles
from millwheel.rpc.principal import ANONYMOUS

if TYPE_CHECKING:
    from millwheel.rpc.access.authorization import Authorization

__all__ = ["ServingLimits", "listen", "serve_gateway"]

_STOP_SECONDS: Final = 4.0
"""How long open requests may take when the server stops. The injector process then needs some seconds, too."""
_HANDSHAKE_SECONDS: Final = 10.0
_BACKLOG: Final = 128
_LINGER_SECONDS: Final = 1.0
"""How long the rest of a refused body is read, so that the client gets to read the answer."""
_READ_BYTES: Final = 64 << 10
_INJECT: Final = frozenset(["inject"])


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """What clients may hold.

    Attributes:
        body: The most bytes of a body, also unpacked.
        body_seconds: How long a body may take.
        requests: The most requests at a time. The bodies of all of them may have eight times the bytes of one, or as
            much as there are requests, if that is less.
        connections: The most open connections.
        head_seconds: How long a connection may be without a request, and how long the head of a request may take. Load
            balancers mostly keep connections for 60 seconds. They should be the ones that close them.
        key_header: The header with the idempotency key.
    """

    body: int = 4 << 20
    body_seconds: float = 15.0
    requests: int = 100
    connections: int = 1_000
    head_seconds: float = 75.0
    key_header: str = "Idempotency-Key"

    @property
    def bytes(self) -> int:
        """The most bytes of all bodies together."""
        return self.body * min(8, self.requests)


class _Room:
    """The requests at this moment, and the bytes of their bodies (G13)."""

    def __init__(self, limits: ServingLimits) -> None:
        self._limits = limits
        self._requests = 0
        self._bytes = 0

    @contextmanager
    def request(self) -> Iterator[Callable[[int], None]]:
        """A place for a request. It returns a function that takes bytes for its body.

        HttpRefusal: there is no place, or there are no bytes.
        """
        if self._requests >= self._limits.requests:
            raise self._full(f"{self._requests} requests")
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if self._bytes + size > self._limits.bytes:
                raise self._full(f"{self._bytes:,} bytes of requests")
            taken += size
            self._bytes += size

        self._requests += 1
        try:
            yield take
        finally:
            self._requests -= 1
            self._bytes -= taken

    @staticmethod
    def _full(what: str) -> HttpRefusal:
        return HttpRefusal(
            429,
            "TOO_MANY_REQUESTS",
            f"the gateway has {what} already",
            "send the request again later, or start more gateways",
            retry_after=1,
        )


def listen(host: str, port: int) -> socket.socket:
    """Listen on a port. Requests wait until a gateway serves them.

    Args:
        host: The address to listen on.
        port: The port; 0 takes a free one.

    Raises:
        RequestError: The port is not available.
    """
    name = host.strip("[]")
    try:
        return socket.create_server(
            (name, port), family=socket.AF_INET6 if ":" in name else socket.AF_INET, backlog=_BACKLOG
        )
    except OSError as error:
        raise RequestError(
            FailureCode.UNAVAILABLE,
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            "stop the process that has the port, or choose another --port",
            reason="PORT_UNAVAILABLE",
        ) from error


async def serve_gateway(
    stack: AsyncExitStack,
    gateway: HttpGateway,
    listener: socket.socket,
    limits: ServingLimits,
    tls: TlsFiles | None = None,
    access: Authorization | None = None,
) -> str:
    """Serve a gateway until ``stack`` closes. Open requests are answered first, for some seconds.

    Args:
        stack: Ends the server.
        gateway: What takes the records.
        listener: A socket that listens.
        limits: What clients may hold.
        tls: The certificates for HTTPS. None: HTTP, without a check who sends.
        access: Says who sends, and who may. It is needed with ``tls``.

    Returns:
        The URL for records.
    """
    host, port = listener.getsockname()[:2]
    site = _Site(gateway, limits, access, own_machine=tls is None and is_loopback(host))
    application = web.Application(middlewares=[site.answering], client_max_size=limits.body)
    path = f"/{gateway.stream}"
    application.add_routes(
        [
            web.post(path, site.post),
            web.get("/healthz", site.health),
            web.get("/readyz", site.ready),
            web.route("*", "/{path:.*}", site.elsewhere),
        ]
    )
    runner = web.AppRunner(
        application,
        access_log=None,
        keepalive_timeout=limits.head_seconds,
        lingering_time=_LINGER_SECONDS,
        auto_decompress=False,
        shutdown_timeout=_STOP_SECONDS,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None
    bounded = _BoundedConnections(runner.server, limits.connections)
    context = None if tls is None else _context(tls, access)
    handshake = None if tls is None else _HANDSHAKE_SECONDS
    server = await asyncio.get_running_loop().create_server(
        bounded, sock=listener, ssl=context, ssl_handshake_timeout=handshake, backlog=_BACKLOG
    )
    stack.callback(server.close)
    shown = f"[{host}]" if ":" in host else host
    return f"{'http' if tls is None else 'https'}://{shown}:{port}{path}"


def _context(tls: TlsFiles, access: Authorization | None) -> ssl.SSLContext:
    """The context of HTTPS. Who sends a token needs no certificate."""
    by_token = access is not None and access.policy.tokens is not None
    return tls.server_context(ssl.CERT_OPTIONAL if by_token else ssl.CERT_REQUIRED)


class _BoundedConnections:
    """Makes the protocol of each connection. One more than the bound is closed at once."""

    def __init__(self, server: web.Server, most: int) -> None:
        self._server = server
        self._most = most

    def __call__(self) -> asyncio.BaseProtocol:
        return self._server() if len(self._server.connections) < self._most else _Closed()


class _Closed(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.abort()


class _Site:
    """The handlers of requests."""

    def __init__(
        self, gateway: HttpGateway, limits: ServingLimits, access: Authorization | None, *, own_machine: bool
    ) -> None:
        """``own_machine``: whether only programs of this machine may send."""
        self._gateway = gateway
        self._limits = limits
        self._access = access
        self._own_machine = own_machine
        self._room = _Room(limits)

    @web.middleware
    async def answering(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer refusals as JSON."""
        try:
            return await handler(request)
        except HttpRefusal as error:
            return web.json_response(error.described(), status=error.status, headers=error.headers)
        except RequestError as error:
            status, body = refusal_of(error)
            headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
            return web.json_response(body, status=status, headers=headers)

    async def post(self, request: web.Request) -> web.Response:
        """Take the records of a request."""
        self._refuse_foreign_host(request)
        await self._refuse_stranger(request)
        form, headers = form_of(request.content_type), request.headers
        with self._room.request() as take:
            body = await self._body(request, take)
            given = GivenHeaders(headers.get(self._limits.key_header, ""), headers.get(TIME_HEADER, ""))
            count = await self._gateway.take(body, form, given)
        return web.json_response({"records": count})

    def _refuse_foreign_host(self, request: web.Request) -> None:
        """Refuse a name of another machine: a page of another site can let its own name lead to this machine."""
        name = (request.url.host or "").strip("[]")
        if self._own_machine and name != "localhost" and not is_loopback(name):
            raise HttpRefusal(
                403,
                "FOREIGN_HOST",
                f"the request is for the host {name!r:.80}, and without TLS only this machine may send",
                "send it to 127.0.0.1; a proxy on this machine must set the header Host so, too",
            )

    async def _refuse_stranger(self, request: web.Request) -> None:
        """Raise RequestError unless the policy lets the caller inject into the stream."""
        access = self._access
        if access is None:
            return
        principal = ANONYMOUS
        try:
            header = request.headers.get("Authorization", "")
            principal = await access.authenticate(_certificate(request), header, required=False)
            if principal is ANONYMOUS:
                raise RequestError(
                    FailureCode.UNAUTHENTICATED,
                    "the gateway does not know who sends",
                    "send a token (Authorization: Bearer TOKEN), or show a certificate of the cluster",
                    reason="CREDENTIAL_MISSING",
                )
            topology = owner_of(self._gateway.stream)
            if not access.policy.holds(principal, _INJECT, topology):
                raise RequestError(
                    FailureCode.PERMISSION_DENIED,
                    f"{principal.name} may not send records to {self._gateway.stream}: it needs role inject for "
                    f"topology {topology!r}",
                    "grant it in the policy of the gateway (--policy), or use another certificate or token",
                    reason="ROLE_MISSING",
                )
        except RequestError as error:
            access.note_request("post", str(request.remote), error.code.name, principal, error.reason, "gateway")
            raise

    async def _body(self, request: web.Request, take: Callable[[int], None]) -> bytes:
        """The body, unpacked. HttpRefusal: it is too large, too slow, or not packed as it says."""
        limits, packed = self._limits, request.headers.get("Content-Encoding", "identity").lower()
        if packed not in ("identity", "gzip"):
            raise HttpRefusal(
                415, "CONTENT_TYPE", f"a body packed by {packed!r:.80} is not understood", "use gzip, or do not pack it"
            )
        if (request.content_length or 0) > limits.body:
            raise too_large(limits.body)
        inflater = BodyInflater(limits.body) if packed == "gzip" else None
        body, received = bytearray(), 0
        try:
            async with asyncio.timeout(limits.body_seconds) as limit:
                async for chunk in request.content.iter_chunked(_READ_BYTES):
                    received += len(chunk)
                    part = chunk if inflater is None else inflater.feed(chunk)
                    if received > limits.body or len(body) + len(part) > limits.body:
                        raise too_large(limits.body)
                    take(len(part))
                    body += part
        except TimeoutError:
            if not limit.expired():
                raise
            raise HttpRefusal(
                408,
                "BODY_TOO_SLOW",
                f"the body took more than {limits.body_seconds:g} s",
                "send fewer records in a request",
            ) from None
        except (web.RequestPayloadError, ConnectionError) as error:
            raise HttpRefusal(
                400, "BODY_MALFORMED", f"the body has not come whole: {error}", "send the request again"
            ) from error
        if inflater is not None:
            inflater.end()
        return bytes(body)

    async def health(self, request: web.Request) -> web.Response:
        """Whether the process answers."""
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        """Whether requests can be taken, for a load balancer."""
        if not self._gateway.works:
            return web.json_response({"status": "stopped"}, status=503)
        if self._gateway.away:  # any caller may ask, so the answer names no topology and no address
            return web.json_response({"status": "away"}, status=503)
        return web.json_response({"status": "ok"})

    async def elsewhere(self, request: web.Request) -> web.Response:
        """Refuse any other request."""
        path = f"/{self._gateway.stream}"
        if request.path == path:
            raise HttpRefusal(
                405, "METHOD_NOT_ALLOWED", f"{request.method} is no method of {path}", "send records by POST"
            )
        raise HttpRefusal(404, "NO_SUCH_PATH", f"there is no {request.path} here", f"send records by POST to {path}")


def _certificate(request: web.Request) -> bytes | None:
    """The client certificate of the connection, in PEM."""
    connection: Any = request.get_extra_info("ssl_object")
    found = connection.getpeercert(binary_form=True) if connection is not None else None
    return ssl.DER_cert_to_PEM_cert(found).encode() if found else None
