"""Who uses the console: by a bearer token, by a session that a token has begun, or by a client certificate.

A session is a random id in a cookie that no script can read (``HttpOnly``), that no other site's page can cause to be
sent (``SameSite=Strict``), and that travels with TLS alone (``Secure``). Its principal stays in this process. Each
request is checked against the policy again, so a revocation counts at once. The console then calls the master for that
principal. Its own certificate's roles count for no request.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from ssl import DER_cert_to_PEM_cert
from typing import TYPE_CHECKING, Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from millwheel.rpc.access.delegation import calling_for
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.principal import Principal
from millwheel.server.console.calls import HTTP_STATUS, described_error

if TYPE_CHECKING:
    from millwheel.rpc.access.authorization import Authorization

__all__ = ["COOKIE", "MAX_OWN_SESSIONS", "MAX_SESSIONS", "USER", "ConsoleLogin"]

COOKIE: Final = "__Host-millwheel"
"""The prefix makes browsers refuse the cookie without ``Secure`` or from another host."""
USER: Final = web.RequestKey("user", str)
"""Where a request has the name of its principal."""
SESSION_SECONDS: Final = 12 * 3_600.0
MAX_SESSIONS: Final = 10_000
MAX_OWN_SESSIONS: Final = 20
"""The most sessions of one person. So many logins of one person end no session of another one."""
_PAGE: Final = "/login.html"
_PUBLIC: Final = (".js", ".css", ".svg", ".html")
"""Files of the page. They are the same for all users, and have nothing of the cluster."""


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """Who has logged in, and until when. ``ends`` is in seconds since the epoch."""

    principal: Principal
    ends: float


class ConsoleLogin:
    """The sessions of one console. It exists only with TLS: without it there are no principals."""

    def __init__(self, access: Authorization) -> None:
        self._access = access
        self._sessions: OrderedDict[str, ConsoleSession] = OrderedDict()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes that begin and end a session."""
        return [web.post("/login", self._log_in), web.post("/logout", self._log_out)]

    def middleware(self) -> Middleware:
        """Return the middleware that finds the principal of each request, and refuses those without one."""

        @web.middleware
        async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path == "/login" or _is_public_file(request.path):
                return await handler(request)
            try:
                principal = await self._principal(request)
            except RequestError as error:
                if error.reason != "LOGIN_NEEDED":
                    self._access.note_request("request", str(request.remote), error.code.name, reason=error.reason)
                if request.path == "/" and error.code is FailureCode.UNAUTHENTICATED:
                    return web.Response(status=303, headers={"Location": _PAGE, "Cache-Control": "no-store"})
                return _failed(error)
            request[USER] = principal.name
            with calling_for(principal, request.remote or ""):
                return await handler(request)

        return identify

    async def _principal(self, request: web.Request) -> Principal:
        connected = _certificate(request)
        header = request.headers.get("Authorization", "")
        session = self._sessions.get(request.cookies.get(COOKIE, ""))
        if not header and session is not None and time.time() < session.ends:
            await self._access.authenticate(connected, "", required=False)
            self._access.refuse_revoked(session.principal)
            return session.principal
        return await self._access.authenticate(connected, header)

    async def _log_in(self, request: web.Request) -> web.Response:
        """Begin a session by a token, in the body ``{"token": "..."}``."""
        from millwheel.rpc.access.callers import BEARER  # a console without TLS has no login

        try:
            if request.content_type != "application/json":
                raise _malformed("the body must be JSON")
            try:
                given = json.loads(await request.read())
            except (ValueError, RecursionError):
                raise _malformed("the body is no JSON") from None
            token = given.get("token") if isinstance(given, dict) else None
            if not isinstance(token, str):
                raise _malformed("the body has no token")
            principal = await self._access.authenticate(_certificate(request), BEARER + token)
        except RequestError as error:
            self._access.note_request("login", str(request.remote), error.code.name, reason=error.reason)
            return _failed(error)
        self._access.note_request("login", str(request.remote), "OK", principal)
        now = time.time()
        ends = min(now + SESSION_SECONDS, principal.expires or now + SESSION_SECONDS)
        name = self._begin(ConsoleSession(principal, ends))
        response = _json({"principal": principal.name})
        response.set_cookie(COOKIE, name, max_age=int(ends - now), httponly=True, secure=True, samesite="Strict")
        return response

    def _begin(self, session: ConsoleSession) -> str:
        """Keep a session, and return its id. A person's oldest one ends before those of others."""
        own = [name for name, one in self._sessions.items() if one.principal.name == session.principal.name]
        if len(own) >= MAX_OWN_SESSIONS:
            del self._sessions[own[0]]
        elif len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)
        name = secrets.token_urlsafe(32)
        self._sessions[name] = session
        return name

    async def _log_out(self, request: web.Request) -> web.Response:
        """End the session."""
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)
        response = _json({})
        response.del_cookie(COOKIE, httponly=True, secure=True, samesite="Strict")
        return response


def _is_public_file(path: str) -> bool:
    return path.endswith(_PUBLIC) and not path.startswith("/api/")


def _certificate(request: web.Request) -> bytes | None:
    """Return the client certificate of the connection, in PEM."""
    connection = request.get_extra_info("ssl_object")
    found = connection.getpeercert(binary_form=True) if connection is not None else None
    return DER_cert_to_PEM_cert(found).encode() if found else None


def _malformed(text: str) -> RequestError:
    remedy = 'send {"token": "..."} with Content-Type: application/json'
    return RequestError(FailureCode.INVALID_ARGUMENT, text, remedy, reason="REQUEST_MALFORMED")


def _failed(error: RequestError) -> web.Response:
    return _json(described_error(error), HTTP_STATUS.get(error.code, 500))


def _json(body: object, status: int = 200) -> web.Response:
    return web.json_response(body, status=status, headers={"Cache-Control": "no-store"})
