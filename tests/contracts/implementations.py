"""What the contract suites run against. Another store or coordinator is one more entry here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

from millwheel.coordination.contract import Coordinator
from millwheel.coordination.etcd import EtcdCoordinator, EtcdSettings
from millwheel.coordination.memory import MemoryCoordinator
from millwheel.store.contract import StateStore
from millwheel.store.database import EmbeddedDatabase
from millwheel.store.memory import MemoryStore
from tests.components import etcd

OpenStore = Callable[[Path], AbstractAsyncContextManager[StateStore]]
OpenCoordinator = Callable[[Path], AbstractAsyncContextManager[Coordinator]]


@asynccontextmanager
async def _memory_store(_: Path) -> AsyncIterator[StateStore]:
    store = MemoryStore()
    yield store
    await store.close()


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


@asynccontextmanager
async def _memory_coordinator(_: Path) -> AsyncIterator[Coordinator]:
    coordinator = MemoryCoordinator()
    yield coordinator
    await coordinator.close()


@asynccontextmanager
async def _embedded_coordinator(path: Path) -> AsyncIterator[Coordinator]:
    async with await EmbeddedDatabase.open(path / "db") as database:
        yield database.coordinator


@asynccontextmanager
async def _etcd_coordinator(path: Path) -> AsyncIterator[Coordinator]:
    """The path names the data, as it does for those that keep them there."""
    coordinator = EtcdCoordinator(EtcdSettings(etcd().endpoints, prefix=f"contract{path}/"))
    yield coordinator
    await coordinator.close()


STORES: dict[str, OpenStore] = {
    "memory": _memory_store,
    "embedded": _embedded_store,
    "embedded-reopened": _reopened_store,
}

DURABLE_STORES: dict[str, OpenStore] = {"embedded": _embedded_store}
"""Those that keep everything when they are closed and opened again on the same path."""

COORDINATORS: dict[str, OpenCoordinator] = {
    "memory": _memory_coordinator,
    "embedded": _embedded_coordinator,
    "etcd": _etcd_coordinator,
}

DURABLE_COORDINATORS: dict[str, OpenCoordinator] = {"embedded": _embedded_coordinator, "etcd": _etcd_coordinator}
