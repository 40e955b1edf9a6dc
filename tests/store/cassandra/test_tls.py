"""Cassandra behind TLS: who it is is checked, and what is said is the same."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from millwheel.store.cassandra import CassandraSettings, CassandraStore
from millwheel.store.contract import Append, StoreUnavailableError
from tests.store.cassandra.conftest import OpenStore

CERTIFICATES: Final = Path(__file__).parents[2] / "rpc" / "certificates"


@pytest.fixture
async def behind_tls(settings: CassandraSettings) -> AsyncIterator[CassandraSettings]:
    """The settings of a node that speaks TLS: a way to the one that there is."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / "one.pem", CERTIFICATES / "one.key")
    host, _, port = settings.contact_points[0].rpartition(":")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(carry(reader, back), carry(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", ssl=context)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield replace(settings, contact_points=(address,), tls_ca=CERTIFICATES / "one-ca.pem")
    server.close()


async def test_a_store_is_reached_through_tls(behind_tls: CassandraSettings, name: str, open_store: OpenStore) -> None:
    store = await open_store(behind_tls)
    try:
        await store.create_journal(name)
        await store.fence(name, 1)
        entry = bytes(range(256)) * 4_096
        await store.append(name, Append(1, 1, 0, (), entry))
        assert await store.read_entries(name, 1, 1) == [entry]
    finally:
        await store.close()


async def test_a_node_whose_certificate_nobody_vouches_for_is_refused_by_name(behind_tls: CassandraSettings) -> None:
    with pytest.raises(StoreUnavailableError, match=r"TLS with Cassandra .*store\.tls_ca"):
        await CassandraStore.open(replace(behind_tls, tls_ca=CERTIFICATES / "two-ca.pem"))
