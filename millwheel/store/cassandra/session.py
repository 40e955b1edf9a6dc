"""Requests to Cassandra as coroutines, with the driver's failures translated into the contract's errors."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NoReturn, TypeVar

from cassandra import ConsistencyLevel, ProtocolVersion, UnresolvableContactPoints
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.cluster import Session as DriverSession
from cassandra.connection import Connection
from cassandra.policies import (
    ConstantReconnectionPolicy,
    DCAwareRoundRobinPolicy,
    FallthroughRetryPolicy,
    TokenAwarePolicy,
)
from cassandra.query import PreparedStatement, tuple_factory

from millwheel.model.backoff import Backoff
from millwheel.store.cassandra.answer import QueryResult, Row
from millwheel.store.cassandra.append_connections import AppendConnections
from millwheel.store.cassandra.connection import close_connection
from millwheel.store.cassandra.failures import StoreSettingsError
from millwheel.store.cassandra.settings import ClusterSettings
from millwheel.store.contract import StoreError, StoreUnavailableError

__all__ = ["CassandraSession", "Row", "connect", "writing_at"]

Result = TypeVar("Result")

_RECONNECT_SECONDS: Final = 0.5
_CONNECT_SECONDS: Final = 5.0
_OPENING_SECONDS: Final = 30.0
"""The limit for requests while a store is opened. Making a table takes longer: all nodes must agree on it."""
_BACKOFF: Final = Backoff(0.02, 0.5)


def connect(settings: ClusterSettings, kind: type[Connection]) -> tuple[Cluster, DriverSession]:
    """Connect with connections of class ``kind``. Blocks. StoreError says why there is no connection."""
    try:
        cluster = _cluster(settings, kind)
    except UnresolvableContactPoints as error:
        raise settings.failure_of(error) from error
    try:
        session = cluster.connect()
    except Exception as error:
        cluster.shutdown()
        _check_dc(settings, cluster)
        raise settings.failure_of(error) from error
    session.default_fetch_size = 256
    return cluster, session


def _cluster(settings: ClusterSettings, kind: type[Connection]) -> Cluster:
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(settings.local_dc)),
        # The driver must not retry, at another node or at a weaker level. CassandraSession decides what is repeated.
        retry_policy=FallthroughRetryPolicy(),
        consistency_level=ConsistencyLevel.QUORUM,
        serial_consistency_level=ConsistencyLevel.SERIAL,
        request_timeout=_OPENING_SECONDS,
        row_factory=tuple_factory,
    )
    credentials = PlainTextAuthProvider(settings.username, settings.password) if settings.username else None
    return Cluster(
        contact_points=settings.endpoints(),
        connection_class=kind,
        auth_provider=credentials,
        ssl_context=settings.tls(),
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        # Nagle's algorithm and delayed acknowledgements together would add 40 ms to each commit.
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        protocol_version=ProtocolVersion.V4,
        compression=False,
        reconnection_policy=ConstantReconnectionPolicy(_RECONNECT_SECONDS, max_attempts=None),
        connect_timeout=_CONNECT_SECONDS,
        control_connection_timeout=_CONNECT_SECONDS,
        idle_heartbeat_interval=5,
        idle_heartbeat_timeout=5,
        monitor_reporting_enabled=False,
    )


def writing_at(statements: Mapping[str, PreparedStatement], level: int) -> None:
    """Set the consistency ``level`` of all statements that write."""
    for statement in statements.values():
        if not statement.query_string.startswith("SELECT"):
            statement.consistency_level = level


def _check_dc(settings: ClusterSettings, cluster: Cluster) -> None:
    known = sorted({host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter})
    if known and settings.local_dc and settings.local_dc not in known:
        raise StoreSettingsError(
            f"{settings.prefix}local_dc {settings.local_dc!r}: the data centres there are {', '.join(known)}"
        )


class CassandraSession:
    """The requests of one store. Used from one event loop at a time.

    Appends and fences are sent at once. All other requests pass a gate of ``concurrent_writes``. So a large flush
    neither overloads Cassandra nor delays a commit.

    While other requests pass the gate, a request waits for its turn without limit. If no request passes for a whole
    deadline, the requests that waited for all of that time fail unsent. The clock counts time in which the machine or
    the process was suspended.
    """

    def __init__(self, settings: ClusterSettings, cluster: Cluster, session: DriverSession) -> None:
        self._settings = settings
        self._cluster = cluster
        self._driver = session
        self._append_connections: AppendConnections | None = None
        self._gate = asyncio.Semaphore(settings.concurrent_writes)
        self._passed = _now()
        """When a request last passed the gate."""
        self._stood_until = 0.0
        """When the last standstill ended. In a standstill requests wait for a whole deadline, and none passes."""
        self._outstanding: set[QueryResult] = set()
        self._down_since: dict[str, float] = {}
        """Since when each node that does not answer has been seen not to."""
        self._closed = False

    async def open_append_connections(self) -> None:
        """Send appends on connections of their own from now on, where there are some."""
        self._append_connections = AppendConnections(self._settings, self._cluster)
        await self._append_connections.open()

    async def append(self, statement: PreparedStatement, values: Sequence[object]) -> list[Row]:
        """Send an append at once, on a connection of its own or by the driver. Return the answer's rows."""
        own = None if self._closed else self._append_connections
        answer = None if own is None else own.send(statement, values)
        if answer is None:
            return await self.execute(statement, values)
        try:
            return await answer
        except Exception as error:
            self._raise(error)

    async def execute(self, statement: PreparedStatement, values: Sequence[object]) -> list[Row]:
        """Send at once. Return the rows of all pages of the answer."""
        return await self._send(statement.bind(values))

    async def execute_gated(self, statement: PreparedStatement, values: Sequence[object]) -> list[Row]:
        """Send behind the gate. Return the rows of all pages of the answer."""
        return await self.send_gated(lambda: statement.bind(values))

    async def repeat(self, statement: PreparedStatement, values: Sequence[object]) -> list[Row]:
        """Send behind the gate, and again while the outcome is unknown. Only for idempotent requests."""
        return await self.settle(lambda _: self.execute_gated(statement, values))

    async def send_gated(self, build: Callable[[], object]) -> list[Row]:
        """Send the statement that ``build`` makes, behind the gate. ``build`` runs late, so few statements wait."""
        came, timeout = _now(), self._settings.timeout_seconds
        async with self._gate:
            now = _now()
            if now - max(came, self._passed) > timeout:
                self._stood_until = now
            self._passed = now
            if came < self._stood_until - timeout:
                raise StoreUnavailableError("the request waited past its deadline and was not sent")
            return await self._send(build())

    async def settle(self, attempt: Callable[[bool], Awaitable[Result]]) -> Result:
        """Call ``attempt`` again while its outcome is unknown, until the deadline; then raise StoreUnavailableError.

        The argument of ``attempt`` says whether an earlier attempt may have taken effect.
        """
        deadline = _now() + self._settings.timeout_seconds
        failures = 0
        while True:
            try:
                return await attempt(failures > 0)
            except StoreUnavailableError:
                failures += 1
                pause = _BACKOFF.delay(failures, random.random())
                if self._closed or _now() + pause > deadline:
                    raise
            await asyncio.sleep(pause)

    def node_outages(self) -> dict[str, float]:
        """For how many seconds each node has not answered this process; 0: it does. Any thread may ask."""
        now, hosts = _now(), self._cluster.metadata.all_hosts()
        # Whole assignments, because another thread may ask at the same time.
        down = {str(one.endpoint): self._down_since.get(str(one.endpoint), now) for one in hosts if one.is_up is False}
        self._down_since = down
        return {str(one.endpoint): now - down.get(str(one.endpoint), now) for one in hosts}

    async def close(self) -> None:
        """Fail all outstanding requests, and disconnect."""
        self._closed = True
        for answer in self._outstanding:
            answer.end(_closed_early())
        if self._append_connections is not None:
            await self._append_connections.close(_closed_early())
        await asyncio.to_thread(self._cluster.shutdown)
        await close_connection(self._cluster.connection_class)

    async def _send(self, statement: object) -> list[Row]:
        if self._closed:
            raise StoreUnavailableError("the session is closed")
        timeout = self._settings.timeout_seconds
        answer = QueryResult(timeout)
        self._outstanding.add(answer)
        try:
            answer.follow(self._driver.execute_async(statement, timeout=timeout))
            return await answer
        except Exception as error:
            self._raise(error)
        finally:
            self._outstanding.discard(answer)
            answer.leave()

    def _raise(self, error: Exception) -> NoReturn:
        """Raise the contract's error for an error of the driver."""
        if isinstance(error, StoreError):
            raise error
        failure = self._settings.failure_of(error)
        if isinstance(failure, StoreSettingsError):
            # The session opened with these settings: they were right. Cassandra has changed, or a node is behind.
            failure = StoreUnavailableError(f"{failure}. It is tried again until it answers.")
        raise failure from error


def _closed_early() -> StoreUnavailableError:
    return StoreUnavailableError("the session was closed before Cassandra answered")


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
