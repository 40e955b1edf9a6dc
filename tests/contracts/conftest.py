"""Fixtures of the contract suites: every test runs once for each implementation. Another one is one more entry here.

Names are fresh for each test, so that an implementation may keep its data between tests.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from millwheel.coordination.contract import Coordinator
from millwheel.coordination.etcd import EtcdCoordinator, EtcdSettings
from millwheel.embedded.database import EmbeddedDatabase
from millwheel.store.cassandra import CassandraStore
from millwheel.store.contract import StateStore, StoreUnavailableError
from millwheel.store.memory import MemoryStore
from tests.components import cassandra, cassandra_settings, etcd, three_cassandra_nodes
from tests.coordination.memory import MemoryCoordinator

OpenStore = Callable[[Path], AbstractAsyncContextManager[StateStore]]
OpenCoordinator = Callable[[Path], AbstractAsyncContextManager[Coordinator]]


@asynccontextmanager
async def _closing(open_it: Callable[[Path], Any], path: Path) -> AsyncIterator[Any]:
    """Opens it for a block, and closes it."""
    found = open_it(path)
    made = await found if isinstance(found, Awaitable) else found
    yield made
    await made.close()


@asynccontextmanager
async def _embedded(part: str, path: Path) -> AsyncIterator[Any]:
    """One part of a database on one machine."""
    async with await EmbeddedDatabase.open(path / "db") as database:
        yield getattr(database, part)


class _ReopenedStore:
    """Closes the database and opens it again before every call: nothing may live in memory alone."""

    def __init__(self, path: Path) -> None:
        self._path = path / "db"
        self._one_at_a_time = asyncio.Lock()
        self._closed: StateStore | None = None

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: object) -> object:
            if self._closed is not None:
                return await getattr(self._closed, name)(*arguments)
            async with self._one_at_a_time, await EmbeddedDatabase.open(self._path) as database:
                if name == "close":
                    self._closed = database.store
                return await getattr(database.store, name)(*arguments)

        return call


_uses = count(1)


async def _store_by_driver() -> StateStore:
    """Its appends go by the driver, and not on connections of their own."""
    return await CassandraStore.open(replace(cassandra_settings(cassandra(), "contract"), direct_appends=False))


async def _three_nodes_store(_: Path) -> StateStore:
    """Three replicas. Midway a node is killed; later it comes back, and another is killed."""
    cluster = three_cassandra_nodes()
    use = next(_uses)
    if use in (15, 30):
        cluster.nodes[1 if use == 15 else 2].kill()
    if use == 30:
        await asyncio.to_thread(cluster.nodes[1].start)
    while True:  # as daemons do, until it can be had
        with suppress(StoreUnavailableError):
            return await CassandraStore.open(cassandra_settings(cluster, "contract"))
        await asyncio.sleep(0.2)


DURABLE_STORES: dict[str, OpenStore] = {
    "embedded": partial(_embedded, "store"),
    # All tests share a keyspace: their journals and computations have names of their own.
    "cassandra": partial(_closing, lambda _: CassandraStore.open(cassandra_settings(cassandra(), "contract"))),
    "cassandra-driver": partial(_closing, lambda _: _store_by_driver()),
    "cassandra-3": partial(_closing, _three_nodes_store),
}
"""Those that keep everything when they are closed and opened again on the same path."""

STORES: dict[str, OpenStore] = {
    "memory": partial(_closing, lambda _: MemoryStore()),
    "embedded-reopened": partial(_closing, _ReopenedStore),
    **DURABLE_STORES,
}

DURABLE_COORDINATORS: dict[str, OpenCoordinator] = {
    "embedded": partial(_embedded, "coordinator"),
    # The path names the data, as it does for those that keep them there.
    "etcd": partial(_closing, lambda path: EtcdCoordinator(EtcdSettings(etcd().endpoints, prefix=f"contract{path}/"))),
}

COORDINATORS: dict[str, OpenCoordinator] = {
    "memory": partial(_closing, lambda _: MemoryCoordinator()),
    **DURABLE_COORDINATORS,
}


def params(names: Iterable[str]) -> list[Any]:
    """Fixture parameters: what starts slowly gets time, and what needs a cluster runs when clusters are asked for."""
    slow = pytest.mark.timeout(300)
    marks = {"cassandra": (slow,), "cassandra-driver": (slow,), "cassandra-3": (slow, pytest.mark.cluster)}
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]


@pytest.fixture(params=params(STORES))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StateStore]:
    async with STORES[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture(params=params(DURABLE_STORES))
def open_store(request: pytest.FixtureRequest) -> OpenStore:
    return DURABLE_STORES[request.param]


@pytest.fixture(params=COORDINATORS)
async def coordinator(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Coordinator]:
    async with COORDINATORS[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture(params=DURABLE_COORDINATORS)
def open_coordinator(request: pytest.FixtureRequest) -> OpenCoordinator:
    return DURABLE_COORDINATORS[request.param]


@pytest.fixture
def journal() -> str:
    """A journal id that was never used."""
    return f"window-counter.17.j{uuid.uuid4().hex}"


@pytest.fixture
def incarnation() -> str:
    """A computation's incarnation id that was never used."""
    return f"window-counter.{uuid.uuid4().hex}"


@pytest.fixture
def prefix() -> str:
    """A prefix of coordinator keys that was never used."""
    return f"test/{uuid.uuid4().hex}/"
