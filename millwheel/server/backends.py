"""Opens the store and the coordinator that the settings name. It waits without limit until they are available."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from millwheel.config import Configuration, CoordinatorSection, Settings, StoreSection
from millwheel.coordination.contract import Coordinator, CoordinatorError, CoordinatorUnavailableError
from millwheel.coordination.etcd import EtcdCoordinator, EtcdSettings
from millwheel.embedded.database import EmbeddedDatabase
from millwheel.errors import MillwheelError
from millwheel.model.backoff import Backoff
from millwheel.model.catalog_keys import LEADERSHIP
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.server.startup import refuse_old_maps
from millwheel.store.contract import StateStore, StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from millwheel.store.cassandra import CassandraStore

__all__ = ["Backends", "OpenBackends", "open_backends"]

log = logging.getLogger("millwheel")

_RETRY_BACKOFF: Final = Backoff(0.2, 5.0)
_REPEAT_WARNING_SECONDS: Final = 30.0
"""Seconds after which the same problem is logged again."""

Opened = TypeVar("Opened", StateStore, Coordinator)


@dataclass(slots=True)
class Backends:
    """The open store and coordinator. Leaving the context closes both."""

    store: StateStore
    coordinator: Coordinator
    stack: AsyncExitStack
    node_outages: Callable[[], Mapping[str, float]] = dict
    """For how many seconds each node of the store has not answered; 0: it does. Any thread may ask."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stack.aclose()


Notify = Callable[[str], None]
"""A function that receives a text saying what the process waits for, on each change and then periodically."""

OpenBackends = Callable[[Configuration, Notify], Awaitable[Backends]]


async def open_backends(configuration: Configuration, notify: Notify) -> Backends:
    """Open the coordinator and the store that the settings name.

    While one is unavailable, opening is retried. The log names the setting and what to do.
    """
    settings = configuration.settings
    async with AsyncExitStack() as stack:
        opening = _Opening(settings, stack)
        coordinator = await _waited(opening.coordinator, _coordinator_name(configuration), notify)
        store = await _waited(opening.store, _store_name(configuration), notify)
        return Backends(store, coordinator, stack.pop_all(), opening.node_outages)


class _Opening:
    """Opens coordinator and store, which the stack closes. An embedded database that both share is opened once."""

    def __init__(self, settings: Settings, stack: AsyncExitStack) -> None:
        self._settings = settings
        self._stack = stack
        self._databases: dict[Path, EmbeddedDatabase] = {}
        self.node_outages: Callable[[], Mapping[str, float]] = dict
        """As in ``Backends``: of the store that was opened last."""

    async def coordinator(self) -> Coordinator:
        """Open the coordinator. CoordinatorError or another error says why it cannot be opened."""
        section = self._settings.coordinator
        if section.kind == "embedded":
            return (await self._database(section.path)).coordinator
        coordinator = await _open_etcd(section)
        self._stack.push_async_callback(coordinator.close)
        return coordinator

    async def store(self) -> StateStore:
        """Open the store. StoreError or another error says why it cannot be opened."""
        section = self._settings.store
        if section.kind == "embedded":
            return (await self._database(section.path)).store
        store = await _open_cassandra(section)
        self.node_outages = store.node_outages
        self._stack.push_async_callback(store.close)
        return store

    async def _database(self, path: Path | None) -> EmbeddedDatabase:
        assert path is not None, "checked with the settings"
        if path not in self._databases:
            database = await EmbeddedDatabase.open(path)
            try:
                await refuse_old_maps(database.coordinator, path)
            except BaseException:
                await database.close()
                raise
            self._stack.push_async_callback(database.close)
            self._databases[path] = database
        return self._databases[path]


async def _open_etcd(section: CoordinatorSection) -> Coordinator:
    try:
        settings = EtcdSettings(
            endpoints=section.endpoints,
            prefix=section.prefix,
            username=section.username,
            password=section.password,
            tls_ca=section.tls_ca,
            tls_cert=section.tls_cert,
            tls_key=section.tls_key,
            timeout=section.timeout_seconds,
            history=section.history_seconds,
        )
        coordinator = EtcdCoordinator(settings)
    except ValueError as error:
        raise RequestError(FailureCode.INVALID_ARGUMENT, str(error)) from error
    try:
        # The client connects at its first call. This call shows whether a server answers.
        await coordinator.get(LEADERSHIP)
    except BaseException:
        await coordinator.close()
        raise
    return coordinator


async def _open_cassandra(section: StoreSection) -> CassandraStore:
    # Its driver loads NumPy, which nothing else here needs.
    from millwheel.store.cassandra import CassandraSettings, CassandraStore

    return await CassandraStore.open(
        CassandraSettings(
            contact_points=section.contact_points,
            keyspace=section.keyspace,
            replication=section.replication,
            local_dc=section.local_dc,
            username=section.username,
            password=section.password,
            tls_ca=section.tls_ca,
            tls_cert=section.tls_cert,
            tls_key=section.tls_key,
            timeout_seconds=section.timeout_seconds,
            write_consistency=section.write_consistency,
            concurrent_writes=section.concurrent_writes,
            direct_appends=section.direct_appends,
            state_buckets=section.state_buckets,
        )
    )


@dataclass(frozen=True, slots=True)
class _Name:
    what: str
    setting: str
    source: str

    def __str__(self) -> str:
        return self.what


def _coordinator_name(configuration: Configuration) -> _Name:
    section = configuration.settings.coordinator
    if section.kind == "embedded":
        return _Name(
            f"the embedded coordinator in {section.path}",
            "coordinator.path",
            _source(configuration, "coordinator.path"),
        )
    what = f"etcd at {', '.join(section.endpoints)}"
    return _Name(what, "coordinator.endpoints", _source(configuration, "coordinator.endpoints"))


def _store_name(configuration: Configuration) -> _Name:
    section = configuration.settings.store
    if section.kind == "embedded":
        return _Name(f"the embedded store in {section.path}", "store.path", _source(configuration, "store.path"))
    what = f"Cassandra at {', '.join(section.contact_points)}"
    return _Name(what, "store.contact_points", _source(configuration, "store.contact_points"))


def _source(configuration: Configuration, path: str) -> str:
    return configuration.sources[path]


async def _waited(open_it: Callable[[], Awaitable[Opened]], name: _Name, notify: Notify) -> Opened:
    loop = asyncio.get_running_loop()
    failures, said, said_at = 0, "", 0.0
    while True:
        try:
            opened = await open_it()
        except (CoordinatorError, StoreError, MillwheelError, OSError) as error:
            failures += 1
            why = f"{name}: {error}"
            if why != said or loop.time() - said_at > _REPEAT_WARNING_SECONDS:
                said, said_at = why, loop.time()
                notify(f"it waits for {why}")
                passing = isinstance(error, (CoordinatorUnavailableError, StoreUnavailableError, OSError))
                advice = f"see that it runs, and that {name.setting} names it" if passing else "it is tried again"
                level = logging.WARNING if passing else logging.ERROR
                log.log(level, "waiting for %s; %s (%s: %s)", why, advice, name.setting, name.source)
        else:
            if failures:
                log.info("%s is there", name)
            return opened
        await asyncio.sleep(_RETRY_BACKOFF.delay(failures, 0.5))
