"""Mutual TLS: servers answer only clients with the cluster's certificate. Certificates change at run time."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.failures import RequestError
from millwheel.rpc.gate import Gate
from millwheel.rpc.identity import ENVIRONMENT, TlsFiles, process_tls, use_tls
from millwheel.rpc.server import add_health, bind, create_server, set_health
from tests.patience import patience

HERE = Path(__file__).parent / "certificates"


def files(name: str) -> TlsFiles:
    return TlsFiles(HERE / f"{name}-ca.pem", HERE / f"{name}.pem", HERE / f"{name}.key")


@pytest.fixture(autouse=True)
def _no_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the TLS identity for each test, because it belongs to the whole process."""
    monkeypatch.setattr("millwheel.rpc.identity.chosen", [None])


@pytest.fixture
def changing(tmp_path: Path) -> TlsFiles:
    """Files that a test replaces."""
    here = TlsFiles(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem")
    install("one", here)
    return here


def install(name: str, into: TlsFiles) -> None:
    for source, target in zip(
        (files(name).ca, files(name).cert, files(name).key), (into.ca, into.cert, into.key), strict=True
    ):
        shutil.copy(source, target)
        # A copy keeps no time, but two within one tick of the clock would look alike.
        stat = target.stat()
        os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns + hash(name) % 1_000_000_007))


@pytest.fixture
async def address(changing: TlsFiles) -> AsyncIterator[str]:
    server = create_server()
    at = bind(server, tls=changing)
    await add_health(server, ["millwheel.v1.TopologyService"])
    await server.start()
    yield at
    await server.stop(0)


async def ask(address: str) -> int:
    async with open_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=patience(5))
        return int(answer.status)


SERVING = health_pb2.HealthCheckResponse.SERVING


async def test_who_shows_the_clusters_certificate_is_answered(address: str) -> None:
    use_tls(files("one"))
    assert await ask(address) == SERVING


@pytest.mark.parametrize("name", ["two", ""])
async def test_clients_without_credentials_are_refused(address: str, name: str) -> None:
    use_tls(files(name) if name else None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(address)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    remedy = "if it serves TLS, name its files by --tls-ca, --tls-cert and --tls-key, or MILLWHEEL_RPC_TLS_CA"
    assert (remedy in from_rpc_error(caught.value, address).remedy) is not bool(name)


async def test_a_client_without_its_own_certificate_is_refused(address: str) -> None:
    """The client has only the authority's certificate, which is public."""
    credentials = grpc.ssl_channel_credentials(files("one").ca.read_bytes())
    async with grpc.aio.secure_channel(address, credentials) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=patience(5))


async def test_certificates_are_replaced_while_the_server_runs(address: str, changing: TlsFiles) -> None:
    use_tls(files("one"))
    assert await ask(address) == SERVING
    install("two", changing)
    use_tls(files("two"))
    assert await ask(address) == SERVING
    changing.key.write_text("not a key")
    changing.cert.unlink()
    assert await ask(address) == SERVING, "a half-written file ends nothing"


async def test_a_page_over_https_shows_the_renewed_certificate(changing: TlsFiles) -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def shown() -> bytes | None:
        client = ssl.create_default_context()
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        certificate: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        await reader.read()
        writer.close()
        return certificate

    def expected(name: str) -> bytes:
        return ssl.PEM_cert_to_DER_cert(files(name).cert.read_text())

    server = await asyncio.start_server(page, "127.0.0.1", ssl=changing.server_context(ssl.CERT_NONE))
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert await shown() == expected("one")
        shutil.copy(files("two").cert, changing.cert)
        assert [await shown(), await shown()] == [expected("one")] * 2, "the key is still the old one"
        install("two", changing)
        await shown()
        assert await shown() == expected("two")


def test_the_environment_names_the_files_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.rpc.identity.chosen", [])
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    assert process_tls() is None
    monkeypatch.setenv(ENVIRONMENT[0], "/ca.pem")
    with pytest.raises(RequestError, match=f"{ENVIRONMENT[1]} and {ENVIRONMENT[2]} is not set"):
        process_tls()
    monkeypatch.setenv(ENVIRONMENT[1], "/cert.pem")
    monkeypatch.setenv(ENVIRONMENT[2], "/key.pem")
    assert process_tls() == TlsFiles(Path("/ca.pem"), Path("/cert.pem"), Path("/key.pem"))
    with pytest.raises(RequestError, match=r"/ca\.pem cannot be read: No such file"):
        open_channel("127.0.0.1:1")


async def test_a_server_reports_what_it_waits_for_until_its_role_is_up() -> None:
    gate = Gate()
    server = create_server([gate])
    address = bind(server)
    services = ["millwheel.v1.TopologyService"]
    health = await add_health(server, services, serving=False)
    await server.start()
    try:
        assert await ask(address) == health_pb2.HealthCheckResponse.NOT_SERVING
        gate.waits_for = "it waits for the store"
        async with open_channel(address) as typed:
            channel: Any = typed
            unary = channel.unary_unary("/millwheel.v1.TopologyService/ListTopologies")(b"", timeout=patience(5))
            stream = channel.unary_stream("/millwheel.v1.RoutingService/WatchRouting")(b"", timeout=patience(5))
            for answer in (unary, stream.read()):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await answer
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                assert "it waits for the store" in str(caught.value.details())
        gate.is_open = True
        await set_health(health, services, True)
        assert await ask(address) == SERVING
        async with open_channel(address) as typed:
            channel = typed
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/millwheel.v1.TopologyService/ListTopologies")(b"", timeout=patience(5))
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        await server.stop(0)
