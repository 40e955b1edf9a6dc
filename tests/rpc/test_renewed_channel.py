"""A client whose certificate is renewed needs no restart: its next call shows the new one."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest

from millwheel.rpc import renewed_channel
from millwheel.rpc.access.credentials import of_connection
from millwheel.rpc.channel import open_channel
from millwheel.rpc.identity import TlsFiles, use_tls
from millwheel.rpc.server import bind, create_server
from tests.access.identities import Identities
from tests.patience import patience, until

_times = count(1)


def replace(source: Path, target: Path) -> None:
    shutil.copy(source, target)
    os.utime(target, (next(_times), next(_times)))


def install(source: TlsFiles, into: TlsFiles) -> None:
    for name in ("ca", "cert", "key"):
        replace(getattr(source, name), getattr(into, name))


class Names(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # the class has no parameters when it runs
    """Answers with the name in the caller's certificate: once, or for each request of a stream."""

    def service(self, handler_call_details: Any) -> Any:
        async def one(request: bytes, context: Any) -> bytes:
            return of_connection(context.auth_context()).name.encode()

        async def each(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for _ in requests:
                yield of_connection(context.auth_context()).name.encode()

        if handler_call_details.method == "/t/One":
            return grpc.unary_unary_rpc_method_handler(one)
        return grpc.stream_stream_rpc_method_handler(each)


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, Identities, TlsFiles]]:
    """A server, a CA, and the files of a client, at which it looks before each call."""
    monkeypatch.setattr("millwheel.rpc.identity.chosen", [None])
    monkeypatch.setattr(renewed_channel, "LOOK_SECONDS", 0.0)
    identities = Identities(tmp_path)
    mine = TlsFiles(tmp_path / "my-ca.pem", tmp_path / "my.pem", tmp_path / "my.key")
    install(identities.certificate("before"), mine)
    use_tls(mine)
    server = create_server()
    server.add_generic_rpc_handlers((Names(),))
    address = bind(server, tls=identities.server)
    await server.start()
    yield address, identities, mine
    await server.stop(0)


async def test_a_renewed_certificate_is_shown_at_the_next_call(place: tuple[str, Identities, TlsFiles]) -> None:
    address, identities, mine = place
    async with open_channel(address) as typed:
        channel: Any = typed
        ask, talk = channel.unary_unary("/t/One"), channel.stream_stream("/t/Each")(timeout=patience(20))
        assert await ask(b"", timeout=patience(5)) == b"certificate:before"
        await talk.write(b"")
        assert await talk.read() == b"certificate:before"
        install(identities.certificate("after"), mine)
        assert await ask(b"", timeout=patience(5)) == b"certificate:after"
        await talk.write(b"")
        assert await talk.read() == b"certificate:before", "what is open goes on"
        again = channel.stream_stream("/t/Each")(timeout=patience(5))
        await again.write(b"")
        assert await again.read() == b"certificate:after"


async def test_files_that_are_half_copied_are_not_used(place: tuple[str, Identities, TlsFiles]) -> None:
    address, identities, mine = place
    async with open_channel(address) as typed:
        channel: Any = typed
        ask = channel.unary_unary("/t/One")
        assert await ask(b"", timeout=patience(5)) == b"certificate:before"
        after = identities.certificate("after")
        replace(after.cert, mine.cert)
        assert await ask(b"", timeout=patience(5)) == b"certificate:before", "the key is still the old one"
        mine.key.unlink()
        assert await ask(b"", timeout=patience(5)) == b"certificate:before"
        replace(after.key, mine.key)
        assert await ask(b"", timeout=patience(5)) == b"certificate:after"


async def test_an_earlier_connection_ends_with_its_last_call(
    place: tuple[str, Identities, TlsFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, identities, mine = place
    opened: list[grpc.aio.Channel] = []
    secure = grpc.aio.secure_channel

    def seen(*arguments: Any, **more: Any) -> grpc.aio.Channel:
        opened.append(secure(*arguments, **more))
        return opened[-1]

    monkeypatch.setattr(grpc.aio, "secure_channel", seen)
    async with open_channel(address) as typed:
        channel: Any = typed
        ask, talk = channel.unary_unary("/t/One"), channel.stream_stream("/t/Each")(timeout=patience(20))
        await talk.write(b"")
        await talk.read()
        for name in ("second", "third"):
            install(identities.certificate(name), mine)
            assert await ask(b"", timeout=patience(5)) == f"certificate:{name}".encode()

        async def open_ones() -> list[bool]:
            return [one.get_state() is not grpc.ChannelConnectivity.SHUTDOWN for one in opened]

        await until(open_ones, patience(5), holds=lambda states: states == [True, False, True])
        await talk.done_writing()
        assert not isinstance(await talk.read(), bytes), "the end"
        await until(open_ones, patience(5), holds=lambda states: states == [False, False, True])
    assert await open_ones() == [False] * 3
    install(identities.certificate("fourth"), mine)
    with pytest.raises(grpc.aio.UsageError):
        await ask(b"", timeout=patience(5))
    assert len(opened) == 3, "a closed channel opens no other one"
    await asyncio.sleep(0)
