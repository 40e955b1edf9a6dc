"""The links of a cluster on loopback. A test can cut and slow them for one process at a time.

A server on 127.0.0.N:PORT is known to the others as 127.0.1.N:PORT, where a relay listens. The relay finds the
connecting process by the socket that the connection comes from. So one process can be cut off from a server while
all others reach it. A cut link keeps its data, which arrives when the link is restored. As in a partitioned network,
a write may arrive long after its writer gave up (6.2).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from tests.relay import Line, Relay

_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_ALL_STATES: Final = 0xFFF
_HEADER: Final = "=IHHII"
_ENDS: Final = "!HH4s12x4s12x"
_ANY_INTERFACE: Final = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_INODE_OFFSET: Final = 84
"""The protocol of sock_diag(7): linux/sock_diag.h and linux/inet_diag.h."""


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
        # A thread looks, and the relay goes on: it reads a folder of /proc for each process.
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
    inode = _inode(client, server)
    if inode:
        for name, pid in pids.items():
            with suppress(OSError):
                for entry in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(OSError):
                        if str(entry.readlink()) == f"socket:[{inode}]":
                            return name
    return "client"


def _inode(client: tuple[str, int], server: tuple[str, int]) -> int:
    """The number of the socket at the client's end, or 0 if it is closed.

    The kernel answers at once (sock_diag(7)). Its tables in /proc list each connection of the machine, closed ones too.
    """
    ends = struct.pack(_ENDS, client[1], server[1], *(socket.inet_aton(host) for host, _ in (client, server)))
    request = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, _ALL_STATES) + ends + _ANY_INTERFACE
    header = struct.pack(_HEADER, 16 + len(request), _BY_FAMILY, _REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(header + request)
        answer = kernel.recv(4096)
    _, kind, *_ = struct.unpack_from(_HEADER, answer)
    found: int = struct.unpack_from("=I", answer, _INODE_OFFSET)[0] if kind == _BY_FAMILY else 0
    return found
