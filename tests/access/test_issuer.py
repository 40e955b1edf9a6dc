"""Keys of an issuer (OpenID Connect) come by HTTP, are asked for rarely, and only over HTTPS beyond this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from millwheel.rpc.access import tokens
from millwheel.rpc.access.policy import TokenIssuer
from millwheel.rpc.access.tokens import TokenVerifier
from millwheel.rpc.failures import FailureCode, RequestError
from tests.access.identities import AUDIENCE, Identities
from tests.patience import patience, until


class Issuer:
    """A server with a discovery document and keys, which counts the requests."""

    def __init__(self, identities: Identities) -> None:
        self.identities = identities
        self.url = ""
        self.names = ""
        """Whom the discovery document names as issuer. Empty: this server."""
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.moved = ""
        """Where the keys are said to be now."""

    async def discovery(self, _: web.Request) -> web.Response:
        return web.json_response({"issuer": self.names or self.url, "jwks_uri": f"{self.url}/keys"})

    async def keys(self, request: web.Request) -> web.Response:
        self.asked += 1
        await self.answers.wait()
        if self.moved:
            raise web.HTTPFound(self.moved)
        return await self.moved_keys(request)

    async def moved_keys(self, _: web.Request) -> web.Response:
        return web.json_response(json.loads(self.identities.jwks.read_text()))

    def verifier(self, issuer: str = "") -> TokenVerifier:
        return TokenVerifier(TokenIssuer(issuer or self.url, AUDIENCE, ("EdDSA",)))

    def token(self, kid: str = "one") -> str:
        return self.identities.token("ada", iss=self.url, kid=kid)


@pytest.fixture
async def issuer(tmp_path: Path) -> AsyncIterator[Issuer]:
    made, application = Issuer(Identities(tmp_path)), web.Application()
    places = {"/.well-known/openid-configuration": made.discovery, "/keys": made.keys, "/moved": made.moved_keys}
    application.add_routes([web.get(path, handler) for path, handler in places.items()])
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


async def refusal(verifier: TokenVerifier, token: str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await verifier.principal(token)
    assert caught.value.code is FailureCode.UNAUTHENTICATED
    return caught.value


async def test_the_keys_come_from_the_issuer_once(issuer: Issuer) -> None:
    verifier = issuer.verifier()
    for _ in range(3):
        assert (await verifier.principal(issuer.token())).name == "token:ada"
    assert issuer.asked == 1


async def test_tokens_with_unknown_keys_do_not_flood_it(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = issuer.verifier()
    await verifier.principal(issuer.token())
    for number in range(20):
        assert "no such key" in str(await refusal(verifier, issuer.token(f"unknown-{number}")))
    assert issuer.asked == 1, "less than ten seconds have passed"
    issuer.identities.publish_keys("two")
    monkeypatch.setattr(tokens, "RETRY_SECONDS", 0.0)
    assert (await verifier.principal(issuer.token("two"))).name == "token:ada", "a new key is asked for"
    assert issuer.asked == 2


@pytest.mark.parametrize("keys_seconds", [300.0, 0.0])
async def test_a_slow_issuer_delays_no_known_token(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, keys_seconds: float
) -> None:
    """A stranger without a credential can make the verifier ask the issuer, by a token with an unknown key."""
    monkeypatch.setattr(tokens, "RETRY_SECONDS", 0.0)
    verifier = issuer.verifier()
    await verifier.principal(issuer.token())
    monkeypatch.setattr(tokens, "KEYS_SECONDS", keys_seconds)
    issuer.answers.clear()
    asking = asyncio.ensure_future(refusal(verifier, issuer.token("unknown")))
    await until(lambda: issuer.asked == 2, patience(5))
    assert (await verifier.principal(issuer.token())).name == "token:ada"
    assert not asking.done()
    issuer.answers.set()
    assert "no such key" in str(await asking)


async def test_an_issuer_that_is_away_is_no_open_door(issuer: Issuer) -> None:
    error = await refusal(issuer.verifier("http://127.0.0.1:1"), issuer.token())
    assert error.reason == "TOKEN_KEYS_AWAY"


async def test_another_issuers_document_does_not_count(issuer: Issuer) -> None:
    issuer.names = "https://evil.example"
    error = await refusal(issuer.verifier(), issuer.token())
    assert "its discovery document is of issuer 'https://evil.example'" in str(error)
    assert issuer.asked == 0


async def test_keys_do_not_come_over_plain_http_from_afar(issuer: Issuer) -> None:
    error = await refusal(issuer.verifier("http://login.example"), issuer.token())
    assert "is not https" in str(error)


async def test_an_issuer_cannot_redirect_to_plain_http(issuer: Issuer) -> None:
    issuer.moved = "http://login.example/keys"
    assert "'http://login.example/keys' is not https" in str(await refusal(issuer.verifier(), issuer.token()))


async def test_keys_that_have_moved_on_this_machine_are_found(issuer: Issuer) -> None:
    issuer.moved = f"{issuer.url}/moved"
    assert (await issuer.verifier().principal(issuer.token())).name == "token:ada"
