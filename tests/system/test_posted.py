"""Gateways of HTTP as processes: one is killed between sending and answering, and its request goes to another (G1)."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession, TCPConnector

from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.client.subscription import From, Subscription
from millwheel.rpc.identity import ENVIRONMENT, TlsFiles
from millwheel.server.dev_server import DevSettings, running
from tests.access.identities import LOCAL, Identities, grant
from tests.injectors import posted_shop
from tests.injectors.gateways import LINES, lines, order
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system.server import MAIN, RunningCommand, Server


class Gateway(RunningCommand):
    """``millwheel inject http``."""

    def __init__(self, address: str, log: Path, *options: str, environment: Mapping[str, str] | None = None) -> None:
        inject = ["inject", "http", "orders", "--port", "0", "--address", address, *options]
        super().__init__(log, [sys.executable, "-c", MAIN, *inject], environment, piped=True)
        self.url = ""

    async def start(self) -> None:
        """Start a process, and return when it listens."""
        await self.spawn()
        self.url = await self.printed(patience(30))
        assert self.url.startswith("http"), self.tail()


async def post(session: ClientSession, url: str, body: str, key: str) -> None:
    """Send a request, which has effect."""
    async with session.post(url, data=body, headers={**LINES, "Idempotency-Key": key}) as response:
        assert response.status == 200, await response.text()


async def finish(address: str, process: str) -> None:
    """End a process of the stream for good."""
    async with Injector("orders", address=address, process=process) as injector:
        await injector.finish(patience(20))


@pytest.mark.timeout(240)
@pytest.mark.guarantee("G1", section="5.2")
async def test_a_request_to_a_killed_gateway_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = tmp_path / "open"
    monkeypatch.setenv(posted_shop.OPEN, str(opening))
    body = lines([order(number, "stuck" if number % 50 == 7 else f"u{number % 5}") for number in range(300)])
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(DevSettings(db=tmp_path / "db", port=0, intervals=3)))
        session = await stack.enter_async_context(ClientSession())
        await submit_copy(server.address, posted_shop.__file__, "posted", tmp_path)
        patient = ("--answer-seconds", f"{patience(20):g}")
        one, two = (
            Gateway(server.address, tmp_path / f"{name}.log", "--process", name, *patient) for name in ("one", "two")
        )
        await asyncio.gather(stack.enter_async_context(one), stack.enter_async_context(two))
        asked = asyncio.create_task(post(session, one.url, body, "lost"))
        await until(opening.with_suffix(".tried").exists, patience(20))
        await one.kill()
        with pytest.raises((ClientError, OSError)):
            await asked
        again = asyncio.create_task(post(session, two.url, body, "lost"))
        await asyncio.sleep(0.3)
        opening.touch()
        await again
        await one.start()
        await post(session, one.url, body, "lost")  # now all are known
        assert await one.stop() == 143
        async with ControlClient(server.address) as client:
            states = {each.process: each.idle for each in await client.list_injectors("posted/orders")}
        assert states == {"one": True, "two": False}, "who ends by SIGTERM leaves the low watermark to the others"
        port = two.url.split("/")[2].partition(":")[2]
        twin = Gateway(server.address, tmp_path / "twin.log", "--process", "two", "--port", port)
        stack.push_async_callback(twin.kill)
        await twin.spawn()
        assert await twin.ended() == 4, "it does not get the port, and the first one of the name goes on"
        assert "cannot listen on 127.0.0.1" in twin.tail()
        await post(session, two.url, body, "lost")
        two.process.send_signal(signal.SIGINT)
        assert await two.ended() == 130
        for process in ("one", "two"):
            await finish(server.address, process)
        found: list[int] = []
        async with Subscription(
            "echo", start=From.OLDEST, address=server.address, record_type=dict, until_end=True
        ) as reader:
            async for batch in reader:
                found += [row["number"] for row in batch.values]
        assert sorted(found) == list(range(300))


def tls_environment(files: TlsFiles) -> dict[str, str]:
    """The environment of a process with this identity."""
    return dict(zip(ENVIRONMENT, map(str, (files.ca, files.cert, files.key)), strict=True))


@pytest.mark.timeout(240)
async def test_the_command_serves_https_by_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway's own certificate has the role inject and no other one, and its clients need that role, too."""
    identities = Identities(tmp_path / "certificates")
    for name, value in tls_environment(identities.certificate("all", ("process", "admin"), LOCAL)).items():
        monkeypatch.setenv(name, value)
    environment = {**os.environ, **tls_environment(identities.certificate("gate", ("inject",), LOCAL))}
    policy = identities.policy(grant("token:ada", ("inject",), ("posted",)))
    context = ssl.create_default_context(cafile=str(identities.server.ca))
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(ClientSession(connector=TCPConnector(ssl=context)))
        server = await stack.enter_async_context(Server(tmp_path / "db", tmp_path / "server.log", options=["--no-ui"]))
        await submit_copy(server.address, posted_shop.__file__, "posted", tmp_path)
        options = ("--policy", str(policy), "--process", "gate")
        gate = await stack.enter_async_context(
            Gateway(server.address, tmp_path / "gate.log", *options, environment=environment)
        )
        assert gate.url.startswith("https://127.0.0.1:")
        for subject, expected in (("ada", 200), ("bob", 403)):
            headers = {**LINES, "Idempotency-Key": "k", "Authorization": f"Bearer {identities.token(subject)}"}
            async with session.post(gate.url, data=lines([order(1)]), headers=headers) as response:
                assert response.status == expected, await response.text()
        assert await gate.stop() == 143, gate.tail()
        assert "peer=127.0.0.1" in gate.tail()
        assert "reason=ROLE_MISSING" in gate.tail(), "the audit log says from where it came, and why it was refused"
