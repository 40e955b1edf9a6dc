"""The console knows who uses it: by token, session or certificate. Its own certificate gives no user a role."""

from __future__ import annotations

import logging
import os
import re
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectorError, ClientSession, CookieJar, ServerDisconnectedError, TCPConnector

from deploy.local.child import free_ports
from millwheel.rpc.identity import TlsFiles
from millwheel.server.console import login
from millwheel.server.console.login import MAX_OWN_SESSIONS
from tests.access.identities import Identities, grant
from tests.daemons.together import together
from tests.patience import patience, until

API = "/api/v1/TopologyService/ListTopologies"
POLICY = grant("token:ada", ("read",)) + grant("certificate:cleo", ("read",))


class Console:
    """A console, and browsers that open it."""

    def __init__(self, identities: Identities, port: int) -> None:
        self.identities = identities
        self.url = f"https://localhost:{port}"

    def browser(self, files: TlsFiles | None = None) -> ClientSession:
        context = ssl.create_default_context(cafile=str(self.identities.server.ca))
        if files is not None:
            context.load_cert_chain(files.cert, files.key)
        return ClientSession(connector=TCPConnector(ssl=context), cookie_jar=CookieJar())

    async def ask(self, browser: ClientSession, token: str = "", path: str = API) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with browser.get(self.url + path, headers=headers, allow_redirects=False) as response:
            is_json = response.content_type == "application/json"
            return response.status, await response.json() if is_json else response.headers.get("Location")

    async def log_in(self, browser: ClientSession, token: str) -> Any:
        return await browser.post(f"{self.url}/login", json={"token": token})


@pytest.fixture
async def console(tmp_path: Path) -> AsyncIterator[Console]:
    identities, port = Identities(tmp_path / "certificates"), free_ports(1)[0]
    server = identities.server
    tls = {"rpc.tls_ca": str(server.ca), "rpc.tls_cert": str(server.cert), "rpc.tls_key": str(server.key)}
    flags = {**tls, "security.policy": str(identities.policy(POLICY))}
    async with together(tmp_path, flags, masters=[{"master.ui_port": str(port)}]):
        yield Console(identities, port)


async def test_who_is_not_known_gets_the_login_page_alone(console: Console) -> None:
    async with console.browser() as browser:
        assert await console.ask(browser, path="/") == (303, "/login.html")
        status, body = await console.ask(browser)
        assert (status, body["error"]["code"], body["error"]["reason"]) == (401, "UNAUTHENTICATED", "LOGIN_NEEDED")
        assert (await console.ask(browser, path="/api/v1"))[0] == 401
        for file in ("/login.html", "/login.js", "/console.css"):
            assert (await console.ask(browser, path=file))[0] == 200


async def test_a_token_is_a_program_and_a_role_counts(console: Console) -> None:
    async with console.browser() as browser:
        assert await console.ask(browser, console.identities.token("ada")) == (
            200,
            {"next_page_token": "", "topologies": []},
        )
        status, body = await console.ask(browser, console.identities.token("bob"))
        assert (status, body["error"]["reason"]) == (403, "ROLE_MISSING")
        assert "token:bob may not call ListTopologies" in body["error"]["message"]
        status, body = await console.ask(browser, console.identities.token("ada", aud="billing"))
        assert (status, body["error"]["reason"]) == (401, "TOKEN_INVALID")


async def test_a_certificate_is_who_it_names(console: Console) -> None:
    for name, expected in (("cleo", 200), ("dora", 403)):
        async with console.browser(console.identities.certificate(name)) as browser:
            assert (await console.ask(browser))[0] == expected
            _, shown = await console.ask(browser, path="/api/v1")
            assert shown["user"] == {"name": f"certificate:{name}", "session": False}
    stranger = Identities(console.identities.folder / "stranger").certificate("cleo")
    async with console.browser(stranger) as browser:
        with pytest.raises((ClientConnectorError, ServerDisconnectedError, ConnectionError, ssl.SSLError, OSError)):
            await console.ask(browser)


async def test_a_session_begins_and_ends(console: Console) -> None:
    token = console.identities.token("ada")
    async with console.browser() as browser:
        response = await console.log_in(browser, token)
        assert response.status == 200
        (header,) = response.headers.getall("Set-Cookie")
        assert {"HttpOnly", "Secure", "SameSite=Strict", "Path=/"} <= set(header.split("; "))
        assert token not in header
        assert (await console.ask(browser))[0] == 200
        assert (await console.ask(browser, path="/"))[0] == 200
        _, shown = await console.ask(browser, path="/api/v1")
        assert shown["user"] == {"name": "token:ada", "session": True}, "the page shows it, and offers the end"
        stolen = header.partition(";")[0].partition("=")
        assert (await browser.post(f"{console.url}/logout")).status == 200
        assert (await console.ask(browser))[0] == 401
    async with console.browser() as other:
        other.cookie_jar.update_cookies({stolen[0]: stolen[2]})
        assert (await console.ask(other))[0] == 401, "the session is gone at the server"


@pytest.mark.parametrize("body", [b"", b"[]", b'{"token": 1}', b"{", b"[" * 100_000])
async def test_a_malformed_login_is_refused(console: Console, body: bytes) -> None:
    async with console.browser() as browser:
        headers = {"Content-Type": "application/json"}
        async with browser.post(f"{console.url}/login", data=body, headers=headers) as response:
            assert response.status == 400
        async with browser.post(f"{console.url}/login", data={"token": console.identities.token("ada")}) as response:
            assert response.status == 400, "a form of another site could send this"


async def test_a_session_ends_with_its_token_and_by_revocation(console: Console) -> None:
    async with console.browser() as browser, console.browser() as other:
        await console.log_in(browser, console.identities.token("ada", jti="stolen"))
        await console.log_in(other, console.identities.token("ada", exp=time.time() - 28))
        assert (await console.ask(browser))[0] == 200

        async def ended() -> bool:
            return (await console.ask(other))[0] == 401

        await until(ended, patience(10), every=0.2)
        os.utime(console.identities.policy(POLICY + '[revoked]\ntoken_ids = ["stolen"]\n'))

        async def revoked() -> bool:
            status, body = await console.ask(browser)
            return status == 401 and body["error"]["reason"] == "CREDENTIAL_REVOKED"

        await until(revoked, patience(10), every=0.2)


async def test_many_logins_end_no_session_of_another(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "MAX_SESSIONS", MAX_OWN_SESSIONS + 2)
    async with console.browser() as browser, console.browser() as first, console.browser() as eve:
        await console.log_in(browser, console.identities.token("ada"))
        await console.log_in(first, console.identities.token("eve"))
        for _ in range(MAX_OWN_SESSIONS + 5):
            await console.log_in(eve, console.identities.token("eve"))
        assert (await console.ask(browser))[0] == 200
        assert (await console.ask(first))[0] == 401, "a person's oldest session ends"
        assert (await console.ask(eve))[0] == 403, "the newest one is there, without a role"


async def test_a_refused_credential_is_in_the_audit_log(console: Console, caplog: pytest.LogCaptureFixture) -> None:
    async with console.browser() as browser:
        with caplog.at_level(logging.INFO, "millwheel.audit"):
            await console.ask(browser)
            await console.ask(browser, console.identities.token("ada", aud="billing"))
    lines: list[Any] = [getattr(one, "fields") for one in caplog.records if one.name == "millwheel.audit"]  # noqa: B009
    found = [(one["method"], one["outcome"], one["reason"]) for one in lines]
    assert found == [("console/request", "UNAUTHENTICATED", "TOKEN_INVALID")], "a page without a login is no refusal"


async def test_the_audit_log_has_the_browsers_address(console: Console, caplog: pytest.LogCaptureFixture) -> None:
    async with console.browser() as browser:
        with caplog.at_level(logging.INFO, "millwheel.audit"):
            headers = {"X-Forwarded-For": "198.51.100.1", "Authorization": f"Bearer {console.identities.token('bob')}"}
            async with browser.get(console.url + API, headers=headers) as response:
                assert response.status == 403
    (line,) = [getattr(one, "fields") for one in caplog.records if one.name == "millwheel.audit"]  # noqa: B009
    assert (line["principal"], line["reason"]) == ("token:bob", "ROLE_MISSING")
    assert re.match(r"(127\.0\.0\.1|::1) through ipv[46]:", line["peer"]), "the connection's, and no header's"


@pytest.mark.parametrize("origin", ["http://[", "null", "https://evil.example"])
async def test_an_origin_that_is_no_url_is_a_foreign_one(console: Console, origin: str) -> None:
    async with (
        console.browser() as browser,
        browser.post(f"{console.url}/logout", headers={"Origin": origin}) as response,
    ):
        assert response.status == 403
        assert (await response.json())["error"]["reason"] == "CROSS_SITE"
