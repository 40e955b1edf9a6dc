"""A development server: the address that clients get, and databases of other versions."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import grpc
import pytest
import typer

from millwheel.cli.server import refuse_exposure
from millwheel.client.control import ControlClient
from millwheel.coordination.contract import Put
from millwheel.embedded.database import EmbeddedDatabase
from millwheel.model.catalog_keys import chunk_key
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.failures import RequestError
from millwheel.rpc.identity import ENVIRONMENT
from millwheel.rpc.v1.control_pb2 import ListTopologiesRequest
from millwheel.rpc.v1.control_pb2_grpc import TopologyServiceStub
from millwheel.server.dev_server import DevSettings, running
from millwheel.server.listen_address import advertised_as, reachable
from millwheel.server.startup import refuse_old_maps
from tests.coordination.memory import MemoryCoordinator
from tests.patience import patience
from tests.system.server import ROOT, Server, run_cli

CERTIFICATES = ROOT / "tests" / "rpc" / "certificates"


@pytest.mark.parametrize(
    ("given", "bound", "expected"),
    [
        ("", "127.0.0.1:7433", "127.0.0.1:7433"),
        ("mw-1", "0.0.0.0:7433", "mw-1:7433"),
        ("mw-1:80", "0.0.0.0:7433", "mw-1:80"),
        ("fe80::1", "[::]:7433", "[fe80::1]:7433"),
    ],
)
def test_what_is_advertised_is_what_was_given(given: str, bound: str, expected: str) -> None:
    assert advertised_as(given, bound) == expected


def test_who_listens_on_every_address_is_reached_by_one_of_them() -> None:
    assert reachable("127.0.0.1") == reachable("mw-1") == ""
    found = reachable("0.0.0.0")
    assert found not in ("", "0.0.0.0")
    with socket.create_server(("0.0.0.0", 0)) as server:
        socket.create_connection((found, server.getsockname()[1]), 5).close()


async def test_a_server_on_every_address_prints_one_to_connect_to(tmp_path: Path) -> None:
    async with running(DevSettings(tmp_path / "db", "0.0.0.0", 0)) as server:
        assert not server.address.startswith("0.0.0.0")
        async with ControlClient(server.address) as client:
            assert await client.list_topologies() == []
            assert client.address == server.address
        registered = server.worker.catalog.workers["dev"]
        assert registered.endpoint.address == server.address


async def test_an_old_database_is_refused_by_name() -> None:
    coordinator = MemoryCoordinator()
    await coordinator.transact((), [Put(chunk_key(IncarnationId("counter.3"), 0), b"")])
    await refuse_old_maps(coordinator, Path("db"))
    await coordinator.transact((), [Put("intervals/counter.3", b"")])
    with pytest.raises(RequestError, match="the database in db is of an earlier version") as caught:
        await refuse_old_maps(coordinator, Path("db"))
    assert "topology drain" in caught.value.remedy


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "mw-1"])
def test_beyond_loopback_a_server_asks_for_tls_or_insecure(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(typer.BadParameter, match="--insecure"):
        refuse_exposure(host, False)
    refuse_exposure(host, True)
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "x.pem")
    refuse_exposure(host, False)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9"])
def test_on_loopback_a_server_needs_nothing(host: str) -> None:
    refuse_exposure(host, False)


async def test_a_server_with_a_certificate_speaks_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = (CERTIFICATES / "one-ca.pem", CERTIFICATES / "one.pem", CERTIFICATES / "one.key")
    for name, file in zip(ENVIRONMENT, files, strict=True):
        monkeypatch.setenv(name, str(file))
    async with running(DevSettings(tmp_path / "db", "localhost", 0)) as server:
        async with ControlClient(server.address) as client:
            assert await client.list_topologies() == []
        async with grpc.aio.insecure_channel(server.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await TopologyServiceStub(channel).ListTopologies(ListTopologiesRequest(), timeout=patience(5))


async def test_exit_codes_of_a_server_are_the_documented_ones(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with await EmbeddedDatabase.open(tmp_path / "db"):
            codes = [
                (await run_cli("", "server", "start-dev", *options)).code
                for options in (
                    ("--port", port),
                    ("--port", "0", "--metrics-port", port),
                    ("--port", "0", "--db", str(tmp_path / "db")),
                    ("--port", "0", "--db", str(tmp_path / "foreign")),
                    ("--port", "0", "--host", "0.0.0.0"),
                    ("--port", "x"),
                )
            ]
    assert codes == [4, 4, 4, 6, 2, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_server_that_is_stopped_exits_with_0(tmp_path: Path, number: signal.Signals) -> None:
    async with Server(tmp_path / "db", tmp_path / "log") as server:
        server.process.send_signal(number)
        assert await server.ended() == 0
