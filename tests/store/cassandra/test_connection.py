"""Connections in the event loop, and nodes that misbehave."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from typing import Any

import pytest
from cassandra.cluster import Cluster, ResponseFuture
from cassandra.connection import Connection, ConnectionShutdown, DefaultEndPoint

from millwheel.store.cassandra import CassandraSettings
from millwheel.store.cassandra.connection import LoopThread, connection_class
from millwheel.store.contract import Append, PartId, StoreUnavailableError
from tests.patience import patience
from tests.store.cassandra.conftest import OpenStore


async def test_a_node_that_disconnects_early_has_given_no_connection() -> None:
    """Regression: a closed connection was returned as ready. Only the first request found the error."""

    async def close_connection(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close_connection, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        kind = connection_class(LoopThread.here())
        with pytest.raises(ConnectionShutdown, match="was closed"):
            await asyncio.to_thread(kind.factory, DefaultEndPoint("127.0.0.1", port), 5.0)


async def test_a_connection_the_driver_leaves_open_is_closed(
    settings: CassandraSettings, monkeypatch: pytest.MonkeyPatch, open_store: OpenStore
) -> None:
    """Regression: a connection pool that was created while the session ended had no owner. Its sockets stayed open."""
    left: list[Connection] = []

    def connect_once_more(cluster: Cluster) -> Any:
        session = connect(cluster)
        (host,) = cluster.metadata.all_hosts()
        left.append(cluster.connection_factory(host.endpoint))
        return session

    connect = Cluster.connect
    monkeypatch.setattr(Cluster, "connect", connect_once_more)
    store = await open_store(settings)
    (one,) = left
    assert not one.is_closed
    await store.close()
    assert one.is_closed
    assert not one.open_ones


async def test_a_page_that_never_comes_is_given_up_at_the_deadline(
    settings: CassandraSettings, monkeypatch: pytest.MonkeyPatch, open_store: OpenStore
) -> None:
    """The driver itself applies the deadline to the first page alone."""
    writer = await open_store(settings)
    try:
        parts = [PartId(f"timers/{number:03}", 1, 0) for number in range(600)]
        await asyncio.gather(*(writer.write_part("many-pages", part, b"part") for part in parts))
        assert await writer.list_parts("many-pages") == parts
    finally:
        await writer.close()
    store = await open_store(replace(settings, timeout_seconds=patience(0.25)))
    try:
        monkeypatch.setattr(ResponseFuture, "start_fetching_next_page", lambda _: None)
        async with asyncio.timeout(patience(10.0)):
            with pytest.raises(StoreUnavailableError, match="did not answer in time"):
                await store.list_parts("many-pages")
    finally:
        await store.close()


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "driver"])
@pytest.mark.guarantee("G13")
async def test_requests_leave_nothing_that_only_the_collector_finds(
    settings: CassandraSettings, open_store: OpenStore, name: str, direct: bool
) -> None:
    """Regression: a request and its waiter referred to each other.

    Entries stayed in memory, and collecting them took 100 ms.
    """
    store = await open_store(replace(settings, direct_appends=direct))
    try:
        await store.create_journal(name)
        await store.fence(name, 1)
        gc.collect()
        before = sum(isinstance(one, asyncio.Future) for one in gc.get_objects())
        gc.disable()
        try:
            for commit in range(1, 21):
                await store.append(name, Append(1, commit, 0, (), b"entry"))
            left = [one for one in gc.get_objects() if isinstance(one, (ResponseFuture, asyncio.Future))]
        finally:
            gc.enable()
        assert len(left) - before < 5, f"{len(left)} requests are still in memory"
    finally:
        await store.close()
