"""Opens the console's port, and serves the console there as soon as its code is loaded.

Loading `aiohttp` takes longer than the rest of a start. So the port is bound first, and its address is known. The code
is loaded in a thread meanwhile. Connections wait in the port's backlog.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import TlsFiles
from millwheel.server.startup import cancel

if TYPE_CHECKING:
    from millwheel.rpc.access.authorization import Authorization

__all__ = ["serve_console"]

_EVERY: Final = frozenset({"0.0.0.0", "::"})
"""Listen addresses that no client can connect to."""
_BACKLOG: Final = 128
_SITE: Final = "millwheel.server.console.site"
_log = logging.getLogger("millwheel")


async def serve_console(
    stack: AsyncExitStack,
    master: str,
    host: str,
    port: int,
    tls: TlsFiles | None = None,
    name: str = "",
    access: Authorization | None = None,
    *,
    read_only: bool = True,
) -> str:
    """Serve the console until ``stack`` closes.

    Args:
        stack: Ends the console.
        master: The address of a master, host:port.
        host: The host name or address to listen on.
        port: The port; 0 takes a free one.
        tls: The cluster's certificates. Then a browser must show one, except where the policy takes tokens.
        name: The host name by which other machines reach this one, if it differs from ``host``.
        access: Says who uses it, and makes the calls for them. None without TLS.
        read_only: Whether calls that change something are refused.

    Returns:
        The URL.

    Raises:
        RequestError: The port is not available.
    """
    sockets = await _bind(host, port)
    for one in sockets:
        stack.callback(one.close)
    task = asyncio.create_task(_serve(sockets, master, (host, name), tls, access, read_only))
    task.add_done_callback(_report)
    stack.push_async_callback(cancel, task)
    reached = name if host in _EVERY and name else host
    shown = f"[{reached}]" if ":" in reached else reached
    return f"{'http' if tls is None else 'https'}://{shown}:{sockets[0].getsockname()[1]}/"


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of ``host``, all with the same port."""
    sockets: list[socket.socket] = []
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, address in dict.fromkeys((one[0], one[4]) for one in found):
            at = (address[0], sockets[0].getsockname()[1] if sockets else port, *address[2:])
            sockets.append(socket.create_server(at, family=family, backlog=_BACKLOG))
            sockets[-1].setblocking(False)
    except OSError as error:
        for one in sockets:
            one.close()
        raise RequestError(
            FailureCode.UNAVAILABLE,
            f"cannot serve the console on {host}:{port}: {error.strerror or error}",
            "stop the process that has the port, or choose another --ui-port",
            reason="PORT_UNAVAILABLE",
        ) from error
    return sockets


async def _serve(
    sockets: list[socket.socket],
    master: str,
    names: tuple[str, str],
    tls: TlsFiles | None,
    access: Authorization | None,
    read_only: bool,
) -> None:
    site = await asyncio.to_thread(importlib.import_module, _SITE)
    async with AsyncExitStack() as stack:
        await site.serve_site(stack, sockets, master, names, tls, access, read_only)
        await asyncio.Event().wait()


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("the console has stopped", exc_info=error)
