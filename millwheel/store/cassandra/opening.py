"""Opens a session on the running event loop, and lets go of what a failed or cancelled opening left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from cassandra.cluster import Cluster
from cassandra.cluster import Session as DriverSession
from cassandra.connection import Connection

from millwheel.errors import MillwheelError
from millwheel.store.cassandra.connection import LoopThread, close_connection, connection_class
from millwheel.store.cassandra.session import CassandraSession, connect
from millwheel.store.cassandra.settings import ClusterSettings
from millwheel.store.contract import StoreError, StoreUnavailableError

__all__ = ["Prepare", "open_session"]

Result = TypeVar("Result")
Prepare = Callable[[Cluster, DriverSession], Result]


async def open_session(settings: ClusterSettings, prepare: Prepare[Result]) -> tuple[CassandraSession, Result]:
    """Connect. ``prepare`` blocks: it looks at the tables and prepares statements, in a thread.

    Returns:
        The session, and the result of ``prepare``.

    Raises:
        StoreUnavailableError: Cassandra is unavailable now. Open again later.
        StoreSettingsError: A setting is wrong. The message names it.
        Exception: What ``prepare`` raises, if it is no error of the driver.
    """
    kind = connection_class(LoopThread.here())
    abandoned = threading.Event()
    try:
        return await asyncio.to_thread(_opened, settings, kind, abandoned, prepare)
    except BaseException:
        # A cancellation does not end the thread. Of the thread and these lines, the later one ends the driver.
        abandoned.set()
        kind.end_driver()
        await close_connection(kind)
        raise


def _opened(
    settings: ClusterSettings, connections: type[Connection], abandoned: threading.Event, prepare: Prepare[Result]
) -> tuple[CassandraSession, Result]:
    cluster, driver = connect(settings, connections)
    connections.cluster = cluster
    try:
        if abandoned.is_set():
            raise StoreUnavailableError("the opening was cancelled")
        return CassandraSession(settings, cluster, driver), prepare(cluster, driver)
    except BaseException as error:
        cluster.shutdown()
        if isinstance(error, StoreError | MillwheelError) or not isinstance(error, Exception):
            raise
        raise settings.failure_of(error) from error
