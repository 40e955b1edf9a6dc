"""Connections of their own for appends, with the driver's policy, and nodes that do what no real one does."""

from __future__ import annotations

import asyncio
import re
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from operator import eq, not_
from typing import Any, cast

import pytest
from cassandra import OperationTimedOut
from cassandra.connection import ConnectionShutdown

from millwheel.store.cassandra import append_connections
from millwheel.store.cassandra.append_connections import AppendConnections
from millwheel.store.cassandra.frames import FrameError
from millwheel.store.cassandra.settings import ClusterSettings
from tests.patience import patience, until
from tests.store.cassandra.answers import APPLIED, ERROR, READY_FRAME, RESULT, error, frame, string
from tests.store.cassandra.append_nodes import STATEMENT, AppendNode, KnownNodes, applied
from tests.store.cassandra.test_tls import CERTIFICATES

OWN, DRIVER = "own", "driver"


@asynccontextmanager
async def connected(nodes: KnownNodes) -> AsyncIterator[AppendConnections]:
    own = AppendConnections(ClusterSettings(timeout_seconds=patience(0.5)), cast("Any", nodes))
    await own.open()
    try:
        yield own
    finally:
        await own.close(ConnectionShutdown("the test is over"))


async def way(own: AppendConnections, journal: str) -> str:
    """How an append goes: on a connection of its own, by the driver, or with which error."""
    answer = own.send(STATEMENT, (journal, b"entry"))
    if answer is None:
        return DRIVER
    try:
        assert await answer == [(True,)]
    except (ConnectionShutdown, FrameError, OSError, OperationTimedOut) as error:
        return type(error).__name__
    return OWN


async def until_it_goes(own: AppendConnections, expected: str) -> None:
    await until(lambda: way(own, "journal"), holds=partial(eq, expected))


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "millwheel.store"]


async def test_a_journals_replica_is_asked_unless_it_is_far() -> None:
    async with AppendNode() as one, AppendNode() as two, AppendNode() as three, AppendNode() as remote:
        nodes = KnownNodes([one, two, three], [remote])
        journals = [f"journal {number}" for number in range(40)]
        async with connected(nodes) as own:
            assert {await way(own, journal) for journal in journals} == {OWN}
        for node in (one, two, three):
            its_own = [journal for journal in journals if nodes.replica(journal) is node]
            assert its_own
            assert [journal for journal in node.asked if nodes.replica(journal) is not remote] == its_own
        assert sorted(one.asked + two.asked + three.asked) == sorted(journals)
        assert remote.connections == 0


async def test_another_node_is_asked_once_one_is_down(caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncExitStack() as stack:
        all_nodes = [await stack.enter_async_context(AppendNode()) for _ in range(3)]
        nodes = KnownNodes(all_nodes)
        replica = nodes.replica("journal")
        own = await stack.enter_async_context(connected(nodes))
        assert await way(own, "journal") == OWN
        assert replica.asked == ["journal"]
        await replica.close()
        await until_it_goes(own, DRIVER)
        nodes.lose(replica)
        assert await way(own, "journal") == OWN
        assert [node.asked for node in all_nodes if node is not replica and node.asked] == [["journal"]]
        (warning,) = logged(caplog)
        assert warning.startswith(f"Cassandra at 127.0.0.1:{replica.port}: appends go by the driver until a connection")


async def test_a_node_that_left_the_cluster_loses_its_connection() -> None:
    async with AppendNode() as one, AppendNode() as two:
        nodes = KnownNodes([one, two])
        async with connected(nodes) as own:
            assert (one.open_connections, two.open_connections) == (1, 1)
            nodes.remove(two)
            assert await way(own, "journal") == OWN
            await until(lambda: two.open_connections, holds=not_)
            assert one.open_connections == 1


@pytest.mark.guarantee("G13")
async def test_a_node_that_goes_on_being_wrong_is_backed_off(caplog: pytest.LogCaptureFixture) -> None:
    """Regression: its login works, so the back-off began with each connection, and nothing was logged."""
    async with AppendNode(lambda stream: frame(RESULT, stream, struct.pack(">i", 1))) as node:
        async with connected(KnownNodes([node])) as own:
            begun = asyncio.get_running_loop().time()

            async def connections() -> int:
                await asyncio.gather(*(way(own, f"journal {number}") for number in range(5)))
                return node.connections

            await until(connections, holds=lambda found: found >= 6)
            waited = asyncio.get_running_loop().time() - begun
        assert waited >= (0.1 + 0.2 + 0.4 + 0.8 + 1.6) / 2
        (warning,) = logged(caplog)
        assert warning == (
            f"Cassandra at 127.0.0.1:{node.port}: appends go by the driver until a connection of their own works: "
            "FrameError: a result of kind 1, and not rows"
        )


async def test_an_error_of_no_request_fails_its_appends(caplog: pytest.LogCaptureFixture) -> None:
    """Such as the one of a node that has been forbidden to speak version 4."""
    async with AppendNode(lambda _: frame(ERROR, 0, error(0x000A))) as node, connected(KnownNodes([node])) as own:
        assert await way(own, "journal") == "FrameError"
        await until_it_goes(own, DRIVER)
        (warning,) = logged(caplog)
        assert "FrameError: an error that is of no request: " in warning
        assert "why" in warning


class _Silent(AppendNode):
    """Takes connections, and says nothing."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()


class _Refusing(AppendNode):
    """Refuses all logins."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(ERROR, 0, error(0x0000, text="one line\nanother " + "x" * 1_000)))
        await reader.read()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (_Silent, r"it was not ready within 0\.1 s"),
        (_Refusing, r"[^\n]*one line another x{50}[^\n]{,200}"),
    ],
)
async def test_the_reason_for_no_connection_is_one_line(
    kind: type[AppendNode], reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it was empty for a node that said nothing, and as long as a node liked for one that refused."""
    if kind is _Silent:
        monkeypatch.setattr(append_connections, "CONNECT_SECONDS", 0.1)
    async with kind() as node, connected(KnownNodes([node])) as own:
        await until(lambda: logged(caplog))
        assert await way(own, "journal") == DRIVER
        (warning,) = logged(caplog)
        assert re.fullmatch(rf"Cassandra at [^ ]*: appends go by the driver until [^:]*: {reason}", warning)


async def test_the_loss_of_a_steady_connection_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    async with AppendNode() as node, connected(KnownNodes([node])) as own:

        async def lose() -> int:
            node.disconnect()
            await until_it_goes(own, DRIVER)
            await until_it_goes(own, OWN)
            return len(logged(caplog))

        assert await lose() == 1
        assert await lose() == 1
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + 11.0)
        assert await lose() == 2


async def test_a_nodes_warnings_are_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    warnings = struct.pack(">H", 2) + string("first") + string("a large\nvalue")
    async with AppendNode(lambda stream: frame(RESULT, stream, warnings + APPLIED, 8)) as node:
        async with connected(KnownNodes([node])) as own:
            assert [await way(own, "journal") for _ in range(3)] == [OWN] * 3
        assert logged(caplog) == [f"Cassandra at 127.0.0.1:{node.port} warns of an append: 'a large\\nvalue'"]


@pytest.mark.guarantee("G2")
async def test_a_caller_does_not_give_up_the_number_of_another() -> None:
    """Two answers arrive together. The first caller sends its next append before the second one has run.

    Regression: that append had the second one's number, which the second one then gave up.
    """
    held: list[bytes] = []

    def in_pairs(stream: int) -> bytes:
        held.append(applied(stream))
        return b"".join(held.pop() for _ in range(2)) if len(held) == 2 else b""

    async with AppendNode(in_pairs) as node, connected(KnownNodes([node])) as own:

        async def ways(journal: str) -> list[str]:
            return [await way(own, journal) for _ in range(10)]

        one, two = await asyncio.gather(ways("one"), ways("two"))
        assert one == two == [OWN] * 10


class _HalfClosing(AppendNode):
    """Does not read what clients send after the login. At ``closes`` it ends its half of the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.closes = asyncio.Event()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(9)
        writer.write(READY_FRAME)
        await self.closes.wait()
        writer.write_eof()
        await writer.wait_closed()


async def test_a_half_closed_connection_takes_no_appends() -> None:
    """Regression: it closed only when all was sent, and its appends waited for their whole deadline."""
    async with _HalfClosing() as node, connected(KnownNodes([node])) as own:
        answer = own.send(STATEMENT, ("journal", bytes(16 << 20)))
        assert answer is not None
        waiting = asyncio.gather(answer, return_exceptions=True)
        await asyncio.sleep(0.05)
        node.closes.set()
        (error,) = await waiting
        assert repr(error) == repr(ConnectionShutdown("Cassandra has closed the connection"))
        assert await way(own, "journal") == DRIVER


@pytest.mark.parametrize(
    ("ca", "host", "reason"),
    [
        ("one-ca.pem", "127.0.0.1", ""),
        ("two-ca.pem", "127.0.0.1", "certificate verify failed"),
        ("one-ca.pem", "127.0.0.2", "IP address mismatch"),
    ],
)
async def test_the_certificate_of_a_node_is_checked(
    caplog: pytest.LogCaptureFixture, ca: str, host: str, reason: str
) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(CERTIFICATES / "one.pem", CERTIFICATES / "one.key")
    tls = ClusterSettings(tls_ca=CERTIFICATES / ca).tls()
    async with AppendNode(tls=server, host=host) as node, connected(KnownNodes([node], tls=tls)) as own:
        await until_it_goes(own, DRIVER if reason else OWN)
        warnings = logged(caplog)
        assert len(warnings) == bool(reason)
        assert all(f"{host}:{node.port}" in warning and reason in warning for warning in warnings)
        assert bool(node.asked) == (not reason)
