"""The links of a cluster on loopback. A test can cut and slow them for one process at a time.

A server on 127.0.0.N:PORT is known to the others as 127.0.1.N:PORT, where a relay listens. The relay finds the
connecting process by the socket that the connection comes from. So one process can be cut off from a server while
all others reach it. A cut link keeps its data, which arrives when the link is restored. As in a partitioned network,
a write may arrive long after its writer gave up (6.2).
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from tests.relay import Line, Relay

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


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

    async def client_of(self, writer: asyncio.StreamWriter) -> str:
        # The system's tables have a line for each connection of the machine. A thread looks, and the relay goes on.
        ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        return await asyncio.to_thread(owner, *ends, self._pids())

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
    inode = _inode(_listed(*client), _listed(*server))
    if inode:
        for name, pid in pids.items():
            with suppress(OSError):
                for entry in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(OSError):
                        if str(entry.readlink()) == f"socket:[{inode}]":
                            return name
    return "client"


def _listed(host: str, port: int) -> str:
    """An IPv4 address as the system lists it, alone or at the end of an IPv6 address."""
    return f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"


def _inode(local: str, remote: str) -> str:
    for table in _TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                if local not in line or remote not in line:
                    continue  # splitting each of some thousand lines takes as long as all the rest
                columns = line.split()
                if columns[1].endswith(local) and columns[2].endswith(remote) and columns[9] != "0":
                    return columns[9]
    return ""
