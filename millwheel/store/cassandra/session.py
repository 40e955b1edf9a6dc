"""The driver's requests as asyncio's: a request, its answer, its failure in the contract's words."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

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

from millwheel.store.cassandra.answer import Answer, Row
from millwheel.store.cassandra.connection import hang_up
from millwheel.store.cassandra.failures import StoreSettingsError, failure_of
from millwheel.store.cassandra.settings import CassandraSettings
from millwheel.store.contract import StoreError, StoreUnavailableError

__all__ = ["Row", "Session", "connect", "writing_at"]

Result = TypeVar("Result")

_RECONNECT_SECONDS: Final = 0.5
_CONNECT_SECONDS: Final = 5.0
_OPENING_SECONDS: Final = 30.0
"""For what is asked while a store is opened: a table is made only when all nodes agree on it."""
_FIRST_PAUSE: Final = 0.02
_LAST_PAUSE: Final = 0.5


def connect(settings: CassandraSettings, kind: type[Connection]) -> tuple[Cluster, DriverSession]:
    """Connect, blocking, by connections of that ``kind``; StoreError says why not."""
    try:
        cluster = _cluster(settings, kind)
    except UnresolvableContactPoints as error:
        raise failure_of(error, settings.contact_points, settings.username, settings.keyspace) from error
    try:
        session = cluster.connect()
    except Exception as error:
        cluster.shutdown()
        _check_dc(settings, cluster)
        raise failure_of(error, settings.contact_points, settings.username, settings.keyspace) from error
    session.default_fetch_size = 256
    return cluster, session


def _cluster(settings: CassandraSettings, kind: type[Connection]) -> Cluster:
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(settings.local_dc)),
        # No other node, no weaker level, no second attempt behind our back: what is repeated is repeated by us.
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
        # Nagle's algorithm and delayed acknowledgements together would cost 40 ms a commit.
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
    """Have those of the statements that write be acknowledged at a consistency ``level``."""
    for statement in statements.values():
        if not statement.query_string.startswith("SELECT"):
            statement.consistency_level = level


def _check_dc(settings: CassandraSettings, cluster: Cluster) -> None:
    known = sorted({host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter})
    if known and settings.local_dc and settings.local_dc not in known:
        raise StoreSettingsError(f"store.local_dc {settings.local_dc!r}: the data centres there are {', '.join(known)}")


class Session:
    """Requests of one store. Used from one event loop at a time.

    Appends and fences are sent at once. Everything else passes a gate of ``concurrent_writes``, so that a large flush
    neither floods Cassandra nor stands in a commit's way. What waited at the gate while nothing passed it for a whole
    deadline, on a clock that counts the time that the machine or the process was suspended, is not sent any more.
    While others pass it, it waits for its turn, however many they are.
    """

    def __init__(self, settings: CassandraSettings, cluster: Cluster, session: DriverSession) -> None:
        self._settings = settings
        self._cluster = cluster
        self._driver = session
        self._gate = asyncio.Semaphore(settings.concurrent_writes)
        self._passed = _now()
        """When the gate was last passed."""
        self._stood_until = 0.0
        """When the gate was passed after it had not been for a whole deadline, though somebody waited."""
        self._outstanding: set[Answer] = set()
        self._closed = False

    async def execute(self, statement: PreparedStatement, values: Sequence[object]) -> list[Row]:
        """Send at once; the rows of the answer, all pages of it."""
        return await self._send(statement.bind(values))

    async def execute_gated(self, statement: PreparedStatement, values: Sequence[object]) -> list[Row]:
        """The same, behind the gate."""
        return await self.send_gated(lambda: statement.bind(values))

    async def repeat(self, statement: PreparedStatement, values: Sequence[object]) -> list[Row]:
        """Behind the gate, again and again until it is known to be done: for what may be done twice."""
        return await self.settle(lambda _: self.execute_gated(statement, values))

    async def send_gated(self, build: Callable[[], object]) -> list[Row]:
        """Behind the gate, send what ``build`` makes: made only when its turn comes, so that little of it waits."""
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
        """Repeat ``attempt`` while its outcome is unknown, until the deadline; then StoreUnavailableError.

        ``attempt`` is told whether one before it may have taken effect.
        """
        deadline = _now() + self._settings.timeout_seconds
        pause = _FIRST_PAUSE
        repeated = False
        while True:
            try:
                return await attempt(repeated)
            except StoreUnavailableError:
                if self._closed or _now() + pause > deadline:
                    raise
            repeated = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    async def close(self) -> None:
        """Fail what is outstanding, and disconnect."""
        self._closed = True
        for answer in self._outstanding:
            answer.end(StoreUnavailableError("the store was closed before Cassandra answered"))
        await asyncio.to_thread(self._cluster.shutdown)
        await hang_up(self._cluster.connection_class)

    async def _send(self, statement: object) -> list[Row]:
        if self._closed:
            raise StoreUnavailableError("the store is closed")
        timeout = self._settings.timeout_seconds
        answer = Answer(timeout)
        self._outstanding.add(answer)
        try:
            answer.follow(self._driver.execute_async(statement, timeout=timeout))
            return await answer
        except StoreError:
            raise
        except Exception as error:
            settings = self._settings
            failure = failure_of(error, settings.contact_points, settings.username, settings.keyspace)
            if isinstance(failure, StoreSettingsError):
                # The store was opened with these settings: what does not do any more was changed, or is not there yet.
                failure = StoreUnavailableError(f"{failure}. It is tried again until it answers.")
            raise failure from error
        finally:
            self._outstanding.discard(answer)
            answer.leave()


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
