"""Fixtures of the contract suites: every test runs once for each implementation. Another one is one more entry here.

Names are fresh for each test, so that an implementation may keep its data between tests.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, cast

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


Closable = TypeVar("Closable", bound="StateStore | Coordinator")


def _closing(
    open_it: Callable[[Path], Awaitable[Closable]],
) -> Callable[[Path], AbstractAsyncContextManager[Closable]]:
    """Opens it for a block, and closes it."""

    @asynccontextmanager
    async def opened(path: Path) -> AsyncIterator[Closable]:
        made = await open_it(path)
        yield made
        await made.close()

    return opened


async def _memory_store(_: Path) -> StateStore:
    return MemoryStore()


@asynccontextmanager
async def _embedded_store(path: Path) -> AsyncIterator[StateStore]:
    async with await EmbeddedDatabase.open(path / "db") as database:
        yield database.store


class _ReopenedStore:
    """Closes the database and opens it again before every call: nothing may live in memory alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
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


@asynccontextmanager
async def _reopened_store(path: Path) -> AsyncIterator[StateStore]:
    yield cast("StateStore", _ReopenedStore(path / "db"))


async def _cassandra_store(_: Path) -> StateStore:
    """All tests share a keyspace: their journals and computations have names of their own."""
    return await CassandraStore.open(cassandra_settings(cassandra(), "contract"))


_uses = count(1)


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


async def _memory_coordinator(_: Path) -> Coordinator:
    return MemoryCoordinator()


@asynccontextmanager
async def _embedded_coordinator(path: Path) -> AsyncIterator[Coordinator]:
    async with await EmbeddedDatabase.open(path / "db") as database:
        yield database.coordinator


async def _etcd_coordinator(path: Path) -> Coordinator:
    """The path names the data, as it does for those that keep them there."""
    return EtcdCoordinator(EtcdSettings(etcd().endpoints, prefix=f"contract{path}/"))


DURABLE_STORES: dict[str, OpenStore] = {
    "embedded": _embedded_store,
    "cassandra": _closing(_cassandra_store),
    "cassandra-3": _closing(_three_nodes_store),
}
"""Those that keep everything when they are closed and opened again on the same path."""

STORES = {"memory": _closing(_memory_store), "embedded-reopened": _reopened_store, **DURABLE_STORES}

DURABLE_COORDINATORS: dict[str, OpenCoordinator] = {
    "embedded": _embedded_coordinator,
    "etcd": _closing(_etcd_coordinator),
}

COORDINATORS = {"memory": _closing(_memory_coordinator), **DURABLE_COORDINATORS}


def params(names: Iterable[str]) -> list[Any]:
    """Fixture parameters: what starts slowly gets time, and what needs a cluster runs when clusters are asked for."""
    slow = pytest.mark.timeout(300)
    marks = {"cassandra": (slow,), "cassandra-3": (slow, pytest.mark.cluster)}
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
