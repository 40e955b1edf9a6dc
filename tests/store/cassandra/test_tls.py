"""Cassandra behind TLS: the client checks the node's certificate, and all calls work."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from millwheel.store.cassandra import CassandraSettings, CassandraStore
from millwheel.store.contract import Append, StoreUnavailableError
from tests.relay import CuttingProxy
from tests.store.cassandra.conftest import OpenStore

CERTIFICATES: Final = Path(__file__).parents[2] / "rpc" / "certificates"


@pytest.fixture
async def behind_tls(settings: CassandraSettings) -> AsyncIterator[CassandraSettings]:
    """The settings of a node that speaks TLS: a way to the one that there is."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / "one.pem", CERTIFICATES / "one.key")
    async with CuttingProxy(settings.contact_points[0], tls=context) as proxy:
        yield replace(settings, contact_points=(proxy.address,), tls_ca=CERTIFICATES / "one-ca.pem")


async def test_a_store_is_reached_through_tls(
    behind_tls: CassandraSettings, name: str, open_store: OpenStore, by_driver: list[object]
) -> None:
    store = await open_store(behind_tls)
    try:
        await store.create_journal(name)
        await store.fence(name, 1)
        entry = bytes(range(256)) * 4_096
        await store.append(name, Append(1, 1, 0, (), entry))
        assert await store.read_entries(name, 1, 1) == [entry]
        assert by_driver == []
    finally:
        await store.close()


async def test_a_node_with_an_untrusted_certificate_is_refused_by_name(behind_tls: CassandraSettings) -> None:
    with pytest.raises(StoreUnavailableError, match=r"TLS with Cassandra .*store\.tls_ca"):
        await CassandraStore.open(replace(behind_tls, tls_ca=CERTIFICATES / "two-ca.pem"))
