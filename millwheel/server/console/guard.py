"""What the console refuses: requests that a foreign page makes a browser send, and requests for a foreign host.

A page of another site cannot read the answers (no CORS headers), nor be answered at all (``Sec-Fetch-Site`` and
``Origin``). A name of another site that resolves to this server, as in DNS rebinding, is not a name of this server.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.server.console.calls import described_error

__all__ = ["HEADERS", "guarding"]

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""The headers of every response."""

_OWN_SITES: Final = frozenset({"same-origin", "none"})
"""The values of ``Sec-Fetch-Site`` for the console's own requests, and for what a person typed."""


def guarding(hosts: Collection[str]) -> Middleware:
    """Return the middleware that checks each request and adds the headers.

    Args:
        hosts: The names of this server, besides ``localhost`` and all addresses in numbers.
    """
    names = {"localhost", *(name.lower() for name in hosts)}

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        error = _refusal(request, names)
        try:
            response = await handler(request) if error is None else _refused(error)
        except web.HTTPException as failed:
            text = RequestError(FailureCode.INVALID_ARGUMENT, failed.reason, reason="REQUEST_REFUSED")
            response = web.json_response(described_error(text), status=failed.status)
        response.headers.update(HEADERS)
        return response

    return guard


def _refusal(request: web.Request, names: Collection[str]) -> RequestError | None:
    host = _host_name(request.headers.get("Host", ""))
    if host not in names and not _is_number(host):
        return RequestError(
            FailureCode.PERMISSION_DENIED,
            f"{host!r} is no name of this server",
            "open the console by the address that the server printed, or by an address in numbers",
            reason="HOST_UNKNOWN",
        )
    site = request.headers.get("Sec-Fetch-Site", "none")
    follows_link = request.headers.get("Sec-Fetch-Mode") == "navigate" and not request.path.startswith("/api/")
    origin = request.headers.get("Origin")
    foreign = origin is not None and _place(origin) != request.headers.get("Host", "")
    if foreign or (site not in _OWN_SITES and not follows_link):
        return RequestError(
            FailureCode.PERMISSION_DENIED,
            "a page of another site asked for this",
            "only the console's own pages may, and programs that are no browsers",
            reason="CROSS_SITE",
        )
    return None


def _place(origin: str) -> str | None:
    """Return the host and port of an Origin header. None: it is no URL."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _host_name(header: str) -> str:
    """Return the host in a Host header, without its port and without brackets."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _is_number(host: str) -> bool:
    """Return whether ``host`` is an address in numbers. No name service can make such a host point elsewhere."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _refused(error: RequestError) -> web.Response:
    return web.json_response(described_error(error), status=403)
