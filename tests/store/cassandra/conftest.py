"""A store on the shared Cassandra node, and the driver's own session beside it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from cassandra.cluster import Cluster, Session
from cassandra.query import BoundStatement

from millwheel.store.cassandra import CassandraSettings, CassandraStore
from millwheel.store.cassandra.session import connect
from tests.components import cassandra, cassandra_settings

KEYSPACE = "store_tests"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A node takes its time to start, and to come back after it was killed."""
    for item in items:
        if "tests/store/cassandra" in str(item.path) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture
def settings() -> CassandraSettings:
    return cassandra_settings(cassandra(), KEYSPACE)


OpenStore = Callable[[CassandraSettings], Awaitable[CassandraStore]]


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    """Opens stores, and closes them, also if the test fails."""
    async with AsyncExitStack() as stack:

        async def opened(settings: CassandraSettings) -> CassandraStore:
            store = await CassandraStore.open(settings)
            stack.push_async_callback(store.close)
            return store

        yield opened


@pytest.fixture
async def store(settings: CassandraSettings, open_store: OpenStore) -> CassandraStore:
    return await open_store(settings)


@pytest.fixture
def driver(settings: CassandraSettings) -> Iterator[Any]:
    """The superuser's session, to look at what is stored and to spoil it."""
    cluster, session = connect(settings, Cluster.connection_class)
    try:
        yield session
    finally:
        cluster.shutdown()


@pytest.fixture
def name() -> str:
    """A name that was never used: of a journal, a computation, a keyspace, a role."""
    return f"t{uuid.uuid4().hex}"


@pytest.fixture
def by_driver(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The appends that the driver was given to send. It sends them all the same."""
    found: list[object] = []
    execute = Session.execute_async

    def watched(session: Session, query: object, *arguments: Any, **named: Any) -> Any:
        if isinstance(query, BoundStatement) and "IF sequencer = ?" in query.prepared_statement.query_string:
            found.append(query)
        return execute(session, query, *arguments, **named)

    monkeypatch.setattr(Session, "execute_async", watched)
    return found
