"""Who may send records over HTTPS: by token or certificate, with the roles of the policy."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectionError, ClientSession, TCPConnector

from millwheel.config.access_policy import PolicyFile
from millwheel.rpc.access.authorization import Authorization
from millwheel.rpc.identity import TlsFiles
from millwheel.server.dev_server import DevServer
from tests.access.identities import Identities, grant
from tests.injectors import posted_shop
from tests.injectors.gateways import LINES, finish, gateway, lines, order
from tests.patience import patience, until
from tests.submitting import submit_copy

POLICY = grant("token:ada", ("inject",), ("posted",)) + grant("certificate:cleo", ("inject",))
OTHERS = grant("token:bob", ("inject",), ("billing",)) + grant("token:eve", ("submit",))


async def test_a_role_decides_who_may_send(server: DevServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await submit_copy(server.address, posted_shop.__file__, "posted", tmp_path)
    identities = Identities(tmp_path / "certificates")
    access = Authorization(PolicyFile(identities.policy(POLICY + OTHERS)))

    def client(files: TlsFiles | None = None) -> ClientSession:
        context = ssl.create_default_context(cafile=str(identities.server.ca))
        if files is not None:
            context.load_cert_chain(files.cert, files.key)
        return ClientSession(connector=TCPConnector(ssl=context))

    async def sent(number: int, token: str = "", files: TlsFiles | None = None) -> tuple[int, Any]:
        headers = {**LINES, "Idempotency-Key": f"k{number}"} | ({"Authorization": f"Bearer {token}"} if token else {})
        async with client(files) as session, session.post(url, data=lines([order(number)]), headers=headers) as answer:
            body = await answer.json()
            if answer.status == 401:
                assert answer.headers["WWW-Authenticate"] == "Bearer"
            return answer.status, body.get("error", {}).get("reason")

    async with gateway(server.address, tls=identities.server, access=access) as gate:
        url = gate.url.replace("127.0.0.1", "localhost")
        assert url.startswith("https://")
        watching = asyncio.create_task(access.watch())
        try:
            assert await sent(1, identities.token("ada")) == (200, None)
            assert await sent(2, files=identities.certificate("cleo")) == (200, None)
            with caplog.at_level(logging.INFO, "millwheel.audit"):
                assert await sent(3) == (401, "CREDENTIAL_MISSING")
                assert await sent(3, identities.token("ada", aud="billing")) == (401, "TOKEN_INVALID")
                assert await sent(3, identities.token("bob")) == (403, "ROLE_MISSING"), "for another topology"
                assert await sent(3, identities.token("eve")) == (403, "ROLE_MISSING"), "submit is not inject"
                assert await sent(3, files=identities.certificate("dora")) == (403, "ROLE_MISSING")
            noted: list[Any] = [getattr(one, "fields") for one in caplog.records if one.name == "millwheel.audit"]  # noqa: B009
            assert {one["method"] for one in noted} == {"gateway/post"}
            assert [one["reason"] for one in noted][:2] == ["CREDENTIAL_MISSING", "TOKEN_INVALID"]
            stranger = Identities(tmp_path / "stranger").certificate("cleo")
            with pytest.raises((ClientConnectionError, OSError)):
                await sent(3, files=stranger)
            identities.policy(OTHERS)

            async def refused() -> bool:
                return await sent(1, identities.token("ada")) == (403, "ROLE_MISSING")

            await until(refused, patience(10), every=0.3)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        assert [row["number"] for row in await finish(server.address, gate)] == [1, 2]


async def test_without_tokens_a_client_needs_a_certificate(server: DevServer, tmp_path: Path) -> None:
    await submit_copy(server.address, posted_shop.__file__, "posted", tmp_path)
    identities = Identities(tmp_path / "certificates")
    identities.policy()
    identities.without_tokens()
    access = Authorization(PolicyFile(identities.folder / "policy.toml"))
    async with gateway(server.address, tls=identities.server, access=access) as gate:
        context = ssl.create_default_context(cafile=str(identities.server.ca))
        async with ClientSession(connector=TCPConnector(ssl=context)) as session:
            with pytest.raises((ClientConnectionError, OSError)):
                await session.post(gate.url.replace("127.0.0.1", "localhost"), data="{}")
