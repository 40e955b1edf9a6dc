"""The links of a cluster on loopback. A test can cut and slow them for one process at a time.

A server on 127.0.0.N:PORT is known to the others as 127.0.1.N:PORT, where a relay listens. The relay finds the
connecting process by the socket that the connection comes from. So one process can be cut off from a server while
all others reach it. A cut link keeps its data, which arrives when the link is restored. As in a partitioned network,
a write may arrive long after its writer gave up (6.2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase

import psutil

from tests.relay import Line, Relay


def through(address: str) -> str:
    """The relay's address for the server at ``address``. A text may have several addresses."""
    return address.replace("127.0.0.", "127.0.1.")


@dataclass(frozen=True, slots=True)
class _Rule:
    client: str
    server: str
    delay: float | None
    """Seconds. None: nothing passes."""

    def concerns(self, client: str, server: str) -> bool:
        return fnmatchcase(client, self.client) and fnmatchcase(server, self.server)


class Links(Relay):
    """The links that ``serve`` makes. Use it as ``async with``."""

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        """``pids``: the ids of the processes whose links have names of their own. Every other process is a "client"."""
        super().__init__()
        self._pids = pids
        self._rules: list[_Rule] = []
        self._changed = asyncio.Event()

    async def link(self, name: str, target: str) -> None:
        """Let the others reach the server ``name`` at ``target``, host:port."""
        host, _, port = target.rpartition(":")
        await self.serve(name, target, through(host), int(port))

    # Rules: the first one that matches a link applies. Names may be patterns, like those of files.

    def cut(self, one: str, other: str) -> set[str]:
        """Let nothing pass between ``one`` and ``other``, in both directions. Returns the names out of ``other`` that
        ``one`` has connections with."""
        return self._set(one, other, None)

    def slow(self, one: str, other: str, delay: float) -> set[str]:
        """As :meth:`cut`, but each piece of data takes ``delay`` seconds longer, in both directions."""
        return self._set(one, other, delay)

    def mend(self) -> None:
        """Restore all links. Data that was kept passes."""
        self._rules = []
        self._look_again()

    def _set(self, one: str, other: str, delay: float | None) -> set[str]:
        forth, back = _Rule(one, other, delay), _Rule(other, one, delay)
        self._rules = [*self._rules, forth, back]
        self._look_again()
        links = set(+self.lines)
        found = {server for client, server in links if forth.concerns(client, server)}
        return found | {client for client, server in links if back.concerns(client, server)}

    def _look_again(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def client_of(self, writer: asyncio.StreamWriter) -> str:
        return owner(writer.get_extra_info("peername"), writer.get_extra_info("sockname"), self._pids())

    async def opens(self, line: Line) -> None:
        await self.passes(line, False)

    async def passes(self, line: Line, answer: bool) -> bool:
        while (rule := next((one for one in self._rules if one.concerns(*line)), None)) is not None:
            if rule.delay is not None:
                await asyncio.sleep(rule.delay)
                break
            await self._changed.wait()
        return True


def owner(client: tuple[str, int], server: tuple[str, int], pids: Mapping[str, int]) -> str:
    """The process whose connection leads from ``client`` to ``server``, or "client".

    Both addresses count: from one port of 127.0.0.1 several processes may be connected, each with another address.
    """
    for name, pid in pids.items():
        with suppress(psutil.Error):
            for one in psutil.Process(pid).net_connections("tcp"):
                if one.raddr and (_ipv4(one.laddr), _ipv4(one.raddr)) == (client, server):
                    return name
    return "client"


def _ipv4(address: tuple[str, int]) -> tuple[str, int]:
    """An IPv4 address, which an IPv6 socket has as "::ffff:127.0.0.1"."""
    return address[0].removeprefix("::ffff:"), address[1]
