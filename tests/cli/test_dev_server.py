"""A development server: what it tells clients to connect to, and databases of other versions."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from millwheel.cli.daemons.pieces import refuse_old_maps
from millwheel.cli.daemons.places import advertised_as, reachable
from millwheel.cli.dev_server import DevSettings, running
from millwheel.client.control import ControlClient
from millwheel.coordination.contract import Put
from millwheel.coordination.memory import MemoryCoordinator
from millwheel.core.catalog_keys import chunk_key
from millwheel.rpc.failures import RequestError


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


async def test_a_server_on_every_address_tells_one_that_can_be_connected_to(tmp_path: Path) -> None:
    async with running(DevSettings(tmp_path / "db", "0.0.0.0", 0)) as server:
        assert not server.address.startswith("0.0.0.0")
        async with ControlClient(server.address) as client:
            assert await client.list_topologies() == []
            assert client.address == server.address
        registered = server.worker.catalog.workers["dev"]
        assert registered.endpoint.address == server.address


async def test_an_old_database_is_refused_by_name() -> None:
    coordinator = MemoryCoordinator()
    await coordinator.transact((), [Put(chunk_key("counter.3", 0), b"")])
    await refuse_old_maps(coordinator, Path("db"))
    await coordinator.transact((), [Put("intervals/counter.3", b"")])
    with pytest.raises(RequestError, match="the database in db is of an earlier version") as caught:
        await refuse_old_maps(coordinator, Path("db"))
    assert "topology drain" in caught.value.remedy
