"""Connections of their own for appends, beside the driver's.

An append needs little of the driver, and through the driver it costs several times as much. So it is sent in frames of
our own (:mod:`~.frames`), one connection to each node, in the loop that waits for the answer. The driver says which
node to ask, and sends the append itself while that node has no connection here. So an append never waits for one.

Invariant (G2, G3): the statement and its condition are those of :mod:`~.journals`, at the same levels. A connection may
fail an append whose outcome is unknown, and never repeats it. The caller settles it by a repetition with identical
bytes. Who may break it: code here that sends an append again by itself, or answers for one. Tests:
``test_append_connections.py`` and ``test_direct_appends.py``, and the contract suite and ``test_outages.py`` by either
way.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, cast

from cassandra import OperationTimedOut
from cassandra.cluster import Cluster
from cassandra.connection import ConnectionShutdown, EndPoint
from cassandra.query import PreparedStatement

from millwheel.model.backoff import Backoff
from millwheel.store.cassandra.failures import text_of
from millwheel.store.cassandra.frames import ConnectionState, Row, encode_parameters
from millwheel.store.cassandra.settings import ClusterSettings

__all__ = ["CONNECT_SECONDS", "AppendConnections"]

log = logging.getLogger("millwheel.store")

CONNECT_SECONDS: Final = 5.0
"""In so long a node must have taken a connection and let the user in."""

_OPENING_SECONDS: Final = 2.0
"""For how long an opening waits for the first connections. They may come later."""
_BACKOFF: Final = Backoff(0.1, 5.0)
_STEADY_SECONDS: Final = 10.0
"""A connection that lasted for so long was a good one: the next attempt follows soon, and its loss is logged."""
_TICK_SECONDS: Final = 1.0
_WARNING_SECONDS: Final = 60.0
"""A node may warn of each append. One of its warnings in so long is logged."""
_MAX_UNSENT_BYTES: Final = 4 << 20
"""Bytes that wait for a slow node. Above them the driver sends what comes."""
_ROUTE_SECONDS: Final = 10.0
"""For how long a journal's appends go to one node, unless the node fails. Then the driver is asked again."""


class AppendConnections:
    """The connections of one store. Used in the loop that makes it."""

    def __init__(self, settings: ClusterSettings, cluster: Cluster) -> None:
        """``cluster`` is connected. It knows the nodes."""
        self._settings = settings
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._nodes: dict[EndPoint, _Node] = {}
        self._routes: dict[str, EndPoint] = {}
        self._routes_end = 0.0
        self._next_warning = 0.0

    async def open(self) -> None:
        """Connect to the nodes that the driver would ask. Nodes that do not answer get their connection later."""
        for host in self._policy().make_query_plan():
            self._node(host.endpoint)
        if openings := [node.opening for node in self._nodes.values() if node.opening is not None]:
            await asyncio.wait(openings, timeout=_OPENING_SECONDS)

    def send(self, statement: PreparedStatement, values: Sequence[object]) -> Awaitable[list[Row]] | None:
        """Send an append, and return an awaitable of the answer's rows, or the driver's error.

        Returns:
            None if no connection can take it now. Then nothing is sent.
        """
        connection = self._connection(statement, values)
        if connection is None or connection.is_full:
            return None
        parameters = encode_parameters(values, statement.consistency_level)
        stream = connection.state.execute(statement.query_string, statement.query_id, parameters)
        if stream is None:
            return None
        answer = connection.waiting[stream] = self._loop.create_future()
        connection.flush()
        return self._answer(connection, stream, answer)

    async def close(self, error: Exception) -> None:
        """End all connections. Every append in flight fails with ``error``."""
        openings = [node.opening for node in self._nodes.values() if node.opening is not None]
        for opening in openings:
            opening.cancel()
        await asyncio.gather(*openings, return_exceptions=True)
        for node in self._nodes.values():
            node.end(error)
        self._nodes.clear()

    async def _answer(self, connection: _Connection, stream: int, answer: asyncio.Future[list[Row]]) -> list[Row]:
        late = self._loop.call_later(self._settings.timeout_seconds, _expire, answer)
        try:
            return await answer
        except OperationTimedOut:
            self._routes.clear()
            raise
        finally:
            late.cancel()
            connection.leave(stream, answer)
            del answer  # else an error, this frame and the future would refer to each other

    def _connection(self, statement: PreparedStatement, values: Sequence[object]) -> _Connection | None:
        """Return the connection for the journal of an append, or None while its node has none."""
        now = self._loop.time()
        if now >= self._routes_end:
            self._routes_end = now + _ROUTE_SECONDS
            self._routes.clear()
            known = {host.endpoint for host in self._cluster.metadata.all_hosts()}
            for gone in self._nodes.keys() - known:
                self._nodes.pop(gone).end(ConnectionShutdown(f"{gone} has left the cluster"))
        journal = cast("str", values[statement.routing_key_indexes[0]])
        endpoint = self._routes.get(journal)
        if endpoint is None:
            host = next(iter(self._policy().make_query_plan(None, statement.bind(values))), None)
            if host is None:
                return None
            endpoint = self._routes[journal] = host.endpoint
        connection = self._node(endpoint).connection
        if connection is None:
            self._routes.pop(journal, None)
        return connection

    def _node(self, endpoint: EndPoint) -> _Node:
        """Return the node, and begin to connect to it if it has no connection and it is time to try again."""
        node = self._nodes.setdefault(endpoint, _Node())
        if (former := node.connection) is not None and former.ended:
            node.connection = None
            if former.lasted >= _STEADY_SECONDS:
                node.failures = 0
            self._failed(endpoint, node, former.ended)
        if node.connection is None and node.opening is None and self._loop.time() >= node.next_attempt:
            node.opening = self._loop.create_task(self._connect(endpoint, node))
        return node

    async def _connect(self, endpoint: EndPoint, node: _Node) -> None:
        settings = self._settings
        state = ConnectionState(settings.username, settings.password, self._loop.time())
        connection = _Connection(state, self._loop, partial(self._log_warning, endpoint))
        try:
            address, port = endpoint.resolve()
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._loop.create_connection(
                    lambda: connection, address, port, ssl=self._cluster.ssl_context, family=endpoint.socket_family
                )
                await connection.ready
            node.connection = connection
        except Exception as error:
            late = isinstance(error, TimeoutError) and not error.args  # with a text it is the system's own
            self._failed(endpoint, node, f"it was not ready within {CONNECT_SECONDS:g} s" if late else text_of(error))
        finally:
            node.opening = None
            if node.connection is not connection:
                connection.end(ConnectionShutdown(f"no connection to {endpoint}"))

    def _failed(self, endpoint: EndPoint, node: _Node, why: str) -> None:
        """An attempt to connect has failed, or a connection has ended. The first in a row is logged."""
        node.failures += 1
        node.next_attempt = self._loop.time() + _BACKOFF.delay(node.failures, random.random())
        if node.failures == 1:
            what = "appends go by the driver until a connection of their own works"
            log.warning("Cassandra at %s: %s: %s", endpoint, what, why)

    def _log_warning(self, endpoint: EndPoint, warning: str) -> None:
        now = self._loop.time()
        if now >= self._next_warning:
            self._next_warning = now + _WARNING_SECONDS
            log.warning("Cassandra at %s warns of an append: %r", endpoint, warning)

    def _policy(self) -> Any:
        return self._cluster.profile_manager.default.load_balancing_policy


class _Node:
    """The connection to one node, or when to try again."""

    def __init__(self) -> None:
        self.connection: _Connection | None = None
        self.opening: asyncio.Task[None] | None = None
        self.failures = 0
        """Attempts that failed and connections that ended, one after the other, since one of them was steady."""
        self.next_attempt = 0.0

    def end(self, error: Exception) -> None:
        if self.opening is not None:
            self.opening.cancel()
        if self.connection is not None:
            self.connection.end(error)


class _Connection(asyncio.Protocol):
    """The shell of one connection."""

    def __init__(self, state: ConnectionState, loop: asyncio.AbstractEventLoop, warn: Callable[[str], None]) -> None:
        """``warn`` is called with what the node warns of."""
        self.state = state
        self.ready: asyncio.Future[None] = loop.create_future()
        """Done when the node has let us in."""
        self.waiting: dict[int, asyncio.Future[list[Row]]] = {}
        """The requests that a caller waits for, by stream."""
        self.is_full = False
        """Whether the node takes bytes more slowly than they come. Then no more are given to it."""
        self.ended = ""
        """Why the connection has ended; empty: it has not. A text, as an error would keep the frames that raise it."""
        self.lasted = 0.0
        """For how many seconds a connection that has ended was there."""
        self._loop = loop
        self._warn = warn
        self._began = loop.time()
        self._transport: asyncio.WriteTransport | None = None
        self._next_tick: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        if self.ended:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_MAX_UNSENT_BYTES)
        self.flush()
        self._next_tick = self._loop.call_later(_TICK_SECONDS, self._tick)

    def data_received(self, data: bytes) -> None:
        if self.ended:
            return
        try:
            answers = self.state.received(data, self._loop.time())
        except Exception as error:
            self.end(error)
            return
        for answer in answers:
            future = self.waiting.pop(answer.stream)
            if future.done():
                continue
            if answer.error is not None:
                future.set_exception(answer.error)
            else:
                future.set_result(answer.rows)
        self.flush()
        if self.state.is_ready and not self.ready.done():
            self.ready.set_result(None)
        if warning := self.state.take_warning():
            self._warn(warning)

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False

    def eof_received(self) -> None:
        # Else the transport closes only when all is sent, and takes appends until then that have no answer.
        self.end(ConnectionShutdown("Cassandra has closed the connection"))

    def connection_lost(self, error: Exception | None) -> None:
        self.end(error or ConnectionShutdown("Cassandra has closed the connection"))

    def flush(self) -> None:
        """Send what the connection has to send."""
        if self._transport is not None and (data := self.state.outgoing()):
            self._transport.write(data)

    def leave(self, stream: int, answer: asyncio.Future[list[Row]]) -> None:
        """The caller of a request waits no more. Without effect if it was answered: its stream may be another's now."""
        if self.waiting.get(stream) is answer:
            del self.waiting[stream]
            self.state.leave(stream)

    def end(self, error: Exception) -> None:
        """Close the connection. Every request in flight fails with ``error``: its outcome is unknown. Idempotent."""
        if self.ended:
            return
        self.ended = text_of(error)
        self.lasted = self._loop.time() - self._began
        if self._next_tick is not None:
            self._next_tick.cancel()
        if self._transport is not None:
            self._transport.abort()
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # nothing may wait for it any more, which is no news
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(error)
        self.waiting.clear()

    def _tick(self) -> None:
        try:
            self.state.tick(self._loop.time())
        except Exception as error:
            self.end(error)
            return
        self.flush()
        self._next_tick = self._loop.call_later(_TICK_SECONDS, self._tick)


def _expire(answer: asyncio.Future[list[Row]]) -> None:
    if not answer.done():
        answer.set_exception(OperationTimedOut("no answer to an append"))
