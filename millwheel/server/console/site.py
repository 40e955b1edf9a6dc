"""Serves the console: its files, and the API below ``/api/v1``, from the process's event loop.

The site is a client of the master. So a follower's console shows the whole cluster too: the client continues at the
leader.
"""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web

from millwheel.client.control import ControlClient
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import TlsFiles
from millwheel.server.console.answers import FASTEST, KeptAnswers, zipped
from millwheel.server.console.calls import CALLS, HTTP_STATUS, ApiCall, described_error
from millwheel.server.console.guard import guarding
from millwheel.server.console.login import COOKIE, USER, ConsoleLogin
from millwheel.server.console.permission import refuse_call

if TYPE_CHECKING:
    from millwheel.rpc.access.authorization import Authorization

__all__ = ["serve_site"]

_CALL_SECONDS: Final = 8.0
_MAX_REQUEST_BYTES: Final = 1 << 20
_STOP_SECONDS: Final = 0.5
"""Seconds that requests in progress have when the server stops."""
_LOADS: Final = (
    b'from "/',
    b'import("/',
    b'<link rel="stylesheet" href="/',
    b'<link rel="modulepreload" href="/',
    b'type="module" src="/',
)
"""How the page's files name those that they load."""
_VIEWS: Final = ("topologies", "time", "keys", "streams", "injectors", "letters", "cluster", "events")
"""The views of the page, which are behind a # in its address."""
_BEST: Final = 9
"""The level of compression of files, which are compressed once."""
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


async def serve_site(
    stack: AsyncExitStack,
    sockets: Sequence[socket.socket],
    master: str,
    names: Collection[str],
    tls: TlsFiles | None,
    access: Authorization | None,
    read_only: bool,
) -> None:
    """Serve the console on listening sockets until ``stack`` closes.

    Args:
        stack: Ends the console.
        sockets: The sockets.
        master: The address of a master, host:port.
        names: The host names by which this server is reached.
        tls: The cluster's certificates, if any. Then a browser must show one, except where the policy takes tokens.
        access: Says who uses it, and makes the calls for them. None without TLS.
        read_only: Whether calls that change something are refused.
    """
    client = await stack.enter_async_context(ControlClient(master, deadline=_CALL_SECONDS))
    login = None if access is None else ConsoleLogin(access)
    middlewares = [guarding(names), *([] if login is None else [login.middleware()])]
    application = web.Application(middlewares=middlewares, client_max_size=_MAX_REQUEST_BYTES)
    application.add_routes([*([] if login is None else login.routes()), *_routes(client, read_only)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=_STOP_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    context = None if tls is None else _context(tls, access)
    for one in sockets:
        await web.SockSite(runner, one, ssl_context=context).start()


def _context(tls: TlsFiles, access: Authorization | None) -> ssl.SSLContext:
    """Return the context of HTTPS. Who may log in by a token needs no certificate."""
    by_token = access is not None and access.policy.tokens is not None
    return tls.server_context(ssl.CERT_OPTIONAL if by_token else ssl.CERT_REQUIRED)


def _routes(client: ControlClient, read_only: bool) -> list[web.RouteDef]:
    routes, kept = [web.get("/api/v1", partial(_list_calls, read_only))], KeptAnswers()
    for call in CALLS.values():
        handler = _ApiHandler(client, call, kept, read_only)
        routes.append(web.post(f"/api/v1/{call.path}", handler.post))
        if not call.access.changes:
            routes.append(web.get(f"/api/v1/{call.path}", handler.get))
    routes += [web.get(path, _serve_file) for path in _site_files()]
    routes += [web.get(f"/{view}", _to_view) for view in _VIEWS]
    return [*routes, web.route("*", "/{path:.*}", _not_found)]


async def _list_calls(read_only: bool, request: web.Request) -> web.Response:
    user = {"name": request.get(USER, ""), "session": COOKIE in request.cookies}
    body = {"read_only": read_only, "user": user, "calls": [call.describe() for call in CALLS.values()]}
    return _answer(zipped(msgspec.json.encode(body), FASTEST), is_zipped=True) if _takes_zip(request) else _json(body)


async def _to_view(request: web.Request) -> web.Response:
    """Lead from the name of a view, as a person types it, to the view."""
    return web.Response(status=302, headers={"Location": f"/#{request.path}"})


async def _not_found(request: web.Request) -> web.Response:
    known = CALLS.get(request.path.removeprefix("/api/v1/"))
    if known is not None:
        use = "use GET or POST" if not known.access.changes else "use POST: the call changes something"
        text, remedy, status = f"{request.method} is no method of {request.path}", use, 405
    else:
        text, remedy, status = f"there is no {request.path} here", "GET /api/v1 lists the calls", 404
    return _json(described_error(RequestError(FailureCode.NOT_FOUND, text, remedy, reason="NO_SUCH_PATH")), status)


class _ApiHandler:
    """Serves one call: POST with the request as JSON, or GET with its fields in the query if it only reads."""

    def __init__(self, client: ControlClient, call: ApiCall, kept: KeptAnswers, read_only: bool) -> None:
        self._client = client
        self._call = call
        self._kept = kept
        self._read_only = read_only

    async def get(self, request: web.Request) -> web.Response:
        return await self._answer(request, self._call.from_query(request.query.items()))

    async def post(self, request: web.Request) -> web.Response:
        # A form of another site can send a body too, but none of this type.
        if request.content_type != "application/json":
            return _failed(_malformed("the body must be JSON", "send it with Content-Type: application/json"), 415)
        try:
            given = json.loads(await request.read() or b"{}")
        except (ValueError, RecursionError) as error:
            return _failed(_malformed(f"the body is no JSON: {error}"))
        if not isinstance(given, dict):
            return _failed(_malformed("the body is no JSON object"))
        return await self._answer(request, given)

    async def _answer(self, request: web.Request, given: dict[str, Any]) -> web.Response:
        try:
            refuse_call(self._call.access, read_only=self._read_only)
            answer = await self._call.make(self._client, given)
            content, is_zipped = self._kept.content(answer, zips=_takes_zip(request))
            return _answer(content, is_zipped=is_zipped)
        except RequestError as error:
            return _failed(error)


def _malformed(text: str, remedy: str = "GET /api/v1 lists the fields of each call") -> RequestError:
    return RequestError(FailureCode.INVALID_ARGUMENT, text, remedy, reason="REQUEST_MALFORMED")


def _failed(error: RequestError, status: int = 0) -> web.Response:
    return _json(described_error(error), status or HTTP_STATUS.get(error.code, 500))


def _json(body: Mapping[str, Any], status: int = 200) -> web.Response:
    return _answer(msgspec.json.encode(body), status)


def _answer(content: bytes, status: int = 200, *, is_zipped: bool = False) -> web.Response:
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"} | (
        {"Content-Encoding": "gzip"} if is_zipped else {}
    )
    return web.Response(body=content, content_type="application/json", charset="utf-8", status=status, headers=headers)


# Files.


@dataclass(frozen=True, slots=True)
class _SiteFile:
    content: bytes
    zipped: bytes
    content_type: str
    tag: str
    lasting: bool = False
    """Whether the path has the version of the page, so that the file never changes."""


@cache
def _site_files() -> Mapping[str, _SiteFile]:
    """Read all files of the page, by path. They are few and small.

    The page loads its scripts and its style by paths that begin with the page's version. A browser keeps those for
    good, and asks for the page alone whether it has changed. The same files are at paths without a version.
    """
    raw = dict(_read(files("millwheel.server.console").joinpath("static"), "/"))
    version = hashlib.sha256(b"".join(raw[path] for path in sorted(raw))).hexdigest()[:12].encode()
    found: dict[str, _SiteFile] = {}
    for path, content in raw.items():
        for before in _LOADS if path.endswith((".js", "index.html")) else ():
            content = content.replace(before, before + version + b"/")
        found[path] = _site_file(path, content)
        found[f"/{version.decode()}{path}"] = replace(found[path], lasting=True)
    found["/"] = found.pop("/index.html")
    return found


def _read(folder: Traversable, path: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _read(entry, f"{path}{entry.name}/")
        else:
            found.append((path + entry.name, entry.read_bytes()))
    return found


def _site_file(path: str, content: bytes) -> _SiteFile:
    kind = _TYPES.get(path[path.rfind(".") :], "text/plain")
    return _SiteFile(content, zipped(content, _BEST), kind, hashlib.sha256(content).hexdigest()[:16])


async def _serve_file(request: web.Request) -> web.Response:
    file = _site_files()[request.path]
    # A browser asks each time whether it has the newest version, since the server may have been upgraded.
    kept = "public, max-age=31536000, immutable" if file.lasting else "no-cache"
    headers = {"Cache-Control": kept, "ETag": f'"{file.tag}"', "Vary": "Accept-Encoding"}
    if any(tag.value == file.tag for tag in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    charset = "utf-8" if file.content_type.startswith("text/") else None
    zips = _takes_zip(request)
    if zips:
        headers["Content-Encoding"] = "gzip"
    body = file.zipped if zips else file.content
    return web.Response(body=body, content_type=file.content_type, charset=charset, headers=headers)


def _takes_zip(request: web.Request) -> bool:
    return "gzip" in request.headers.get("Accept-Encoding", "")
