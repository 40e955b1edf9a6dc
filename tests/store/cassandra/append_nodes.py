"""Nodes of Cassandra for appends alone, which answer as a test likes, and the driver's knowledge of them."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final, Self

from cassandra import ConsistencyLevel
from cassandra.connection import DefaultEndPoint
from cassandra.cqltypes import BytesType, UTF8Type
from cassandra.metadata import KeyspaceMetadata, Metadata
from cassandra.policies import DCAwareRoundRobinPolicy, SimpleConvictionPolicy, TokenAwarePolicy
from cassandra.pool import Host
from cassandra.protocol import ColumnMetadata
from cassandra.query import PreparedStatement

from tests.store.cassandra.answers import APPLIED, EXECUTE, READY_FRAME, RESULT, STARTUP, SUPPORTED, frame

_COLUMNS: Final = {"journal": UTF8Type, "value": BytesType}
STATEMENT: Final = PreparedStatement(
    [ColumnMetadata("k", "journals", *column) for column in _COLUMNS.items()], b"id", [0], "UPDATE", "k", 4, None, None
)
"""An append. It has two values: the journal, and bytes."""
STATEMENT.consistency_level = ConsistencyLevel.QUORUM


def applied(stream: int) -> bytes:
    return frame(RESULT, stream, APPLIED)


class AppendNode:
    """Lets all clients in, and answers each append with ``answer``. The block closes what is open at its end."""

    def __init__(
        self,
        answer: Callable[[int], bytes] = applied,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """``answer`` gets the stream of an append, and returns what is sent."""
        self.answer = answer
        self.host = host
        self.connections = 0
        """All that clients have made."""
        self.asked: list[str] = []
        """The journals of all appends that have come."""
        self._tls = tls
        self._open: dict[asyncio.Task[Any] | None, asyncio.StreamWriter] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.host, 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def disconnect(self) -> None:
        """Cut all connections. New ones may be made."""
        for writer in self._open.values():
            writer.transport.abort()

    async def close(self) -> None:
        """Cut all connections, and refuse new ones."""
        self._server.close()
        self.disconnect()
        await asyncio.gather(*filter(None, self._open))

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        while True:
            _, _, stream, opcode, size = struct.unpack(">BBhBI", await reader.readexactly(9))
            body = await reader.readexactly(size)
            if opcode == EXECUTE:
                self.asked.append(_journal(body))
                writer.write(self.answer(stream))
            else:
                writer.write(READY_FRAME if opcode == STARTUP else frame(SUPPORTED, 0, b"\0\0"))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open[asyncio.current_task()] = writer
        with suppress(asyncio.IncompleteReadError, OSError):
            await self.talk(reader, writer)
        del self._open[asyncio.current_task()]
        writer.close()


def _journal(body: bytes) -> str:
    """The first value of an append. Before the values are the statement's id, the level, flags, and their count."""
    start = 2 + struct.unpack_from(">H", body)[0] + 5
    return body[start + 4 : start + 4 + struct.unpack_from(">i", body, start)[0]].decode()


class KnownNodes:
    """What the driver's :class:`Cluster` says of nodes, with its policy. Each journal has one replica."""

    def __init__(
        self, local: Sequence[AppendNode], remote: Sequence[AppendNode] = (), tls: ssl.SSLContext | None = None
    ) -> None:
        """``remote`` are in another data centre."""
        self.metadata = Metadata()
        self._hosts: dict[AppendNode, Host] = {}
        for dc, nodes in (("here", local), ("there", remote)):
            for node in nodes:
                host = Host(DefaultEndPoint(node.host, node.port), SimpleConvictionPolicy)
                host.set_location_info(dc, "rack")
                host.set_up()
                self._hosts[node], _ = self.metadata.add_or_return_host(host)
        width = (1 << 64) // len(self._hosts)
        tokens = {host: [str(number * width - (1 << 63))] for number, host in enumerate(self._hosts.values())}
        self.metadata.keyspaces["k"] = KeyspaceMetadata("k", True, "SimpleStrategy", {"replication_factor": "1"})
        self.metadata.rebuild_token_map("Murmur3Partitioner", tokens)
        self._policy = TokenAwarePolicy(DCAwareRoundRobinPolicy("here"))
        self._policy.populate(self, list(self._hosts.values()))
        self.profile_manager = SimpleNamespace(default=SimpleNamespace(load_balancing_policy=self._policy))
        self.ssl_context = tls

    def replica(self, journal: str) -> AppendNode:
        """The node that keeps a journal."""
        (host,) = self.metadata.get_replicas("k", journal.encode())
        return next(node for node, one in self._hosts.items() if one is host)

    def lose(self, node: AppendNode) -> None:
        """The driver finds that a node is down."""
        self._hosts[node].set_down()
        self._policy.on_down(self._hosts[node])

    def remove(self, node: AppendNode) -> None:
        """A node leaves the cluster."""
        self.lose(node)
        self.metadata.remove_host(self._hosts.pop(node))
