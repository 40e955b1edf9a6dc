"""Connections in the loop, and nodes that do not do what they should."""

from __future__ import annotations

import asyncio

import pytest
from cassandra.connection import ConnectionShutdown, DefaultEndPoint

from millwheel.store.cassandra.connection import LoopThread, connection_class


async def test_a_node_that_hangs_up_before_it_is_ready_has_given_no_connection() -> None:
    """A closed one was handed out as if it were ready, and the first request found out."""

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        kind = connection_class(LoopThread.here())
        with pytest.raises(ConnectionShutdown, match="was closed"):
            await asyncio.to_thread(kind.factory, DefaultEndPoint("127.0.0.1", port), 5.0)
