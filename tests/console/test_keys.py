"""KeyService by the console's API: a key's state and failure, and pages of keys and timers, from the real owner."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession

from millwheel.server.dev_server import DevServer
from tests.console.conftest import Inject, Start
from tests.console.shop import REFUSED
from tests.console.test_api import ACCOUNTS, get, post
from tests.patience import patience, until


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


def encoded(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


class Api:
    """Calls of KeyService."""

    def __init__(self, http: ClientSession, server: DevServer) -> None:
        self._http = http
        self._url = f"{server.console}api/v1/KeyService/"

    async def get_key(self, computation: str, key: str) -> Any:
        request = {"topology": "shop", "computation": computation, "key": encoded(key)}
        status, answer = await post(self._http, f"{self._url}GetKey", request)
        assert status == 200, answer
        return answer

    async def call(self, name: str, **request: Any) -> tuple[int, Any]:
        return await post(self._http, self._url + name, request)


@pytest.fixture
def api(http: ClientSession, server: DevServer) -> Api:
    return Api(http, server)


async def test_a_key_has_its_state_timers_and_owner(api: Api, start: Start, inject: Inject) -> None:
    await start("shop")
    await inject("ann", "ann", "bob")
    found = await until(
        lambda: api.get_key("days", "ann"), patience(30), holds=lambda one: one["key"]["state_text"] == "10"
    )
    assert found["interval"]["owner"]["worker_id"] == "dev"
    assert (len(found["key"]["timers"]), found["key"]["timers"][0]["wall_time"]) == (1, False)
    none = await api.get_key("days", "nobody")
    assert (none["key"]["state_text"], none["key"]["timers"], none["failure_text"]) == ("", [], "")


async def test_a_blocked_key_has_its_last_error(api: Api, start: Start, inject: Inject) -> None:
    await start("shop")
    await inject("ann", REFUSED)
    found = await until(lambda: api.get_key("alerts", REFUSED), patience(30), holds=lambda one: one["failure_text"])
    assert "no alert for eve" in found["failure_text"]
    assert found["key"]["pending_records"] == 1
    assert "shop.py" in found["key"]["failure"]["place"]


async def test_keys_and_timers_are_listed_by_pages(api: Api, start: Start, inject: Inject) -> None:
    await start("shop")
    await inject("ann", "bob", "cyd", "Zoe")
    days = {"topology": "shop", "computation": "days"}

    async def timers() -> Any:
        return (await api.call("ListComputationTimers", **days))[1]["timers"]

    await until(timers, patience(30), holds=lambda some: len(some) == 4)
    keys: list[str] = []
    token = ""
    for _ in range(9):
        _, page = await api.call("ListComputationKeys", **days, page_size=1, page_token=token)
        keys += [base64.b64decode(one["listed"]["key"]).decode() for one in page["keys"]]
        token = page["next_page_token"]
        if not token:
            break
    assert (keys, token) == (["Zoe", "ann", "bob", "cyd"], "")
    _, some = await api.call("ListComputationKeys", **days, keys={"start": encoded("b"), "end": encoded("c")})
    assert [one["listed"]["key"] for one in some["keys"]] == [encoded("bob")]
    _, first = await api.call("ListComputationTimers", **days, page_size=3)
    assert (len(first["timers"]), first["more"]) == (3, True)
    _, one = await api.call("ListComputationTimers", **days, key=encoded("bob"))
    assert [timer["listed"]["key"] for timer in one["timers"]] == [encoded("bob")]


async def test_what_is_not_there_is_named(api: Api, http: ClientSession, server: DevServer, start: Start) -> None:
    await start("shop")
    status, answer = await api.call("GetKey", topology="shop", computation="account", key=encoded("ann"))
    assert (status, answer["error"]["reason"]) == (404, "COMPUTATION_UNKNOWN")
    assert "'accounts'" in answer["error"]["message"]
    beyond = {"page_token": base64.b64encode(b"z").decode(), "keys": {"end": base64.b64encode(b"b").decode()}}
    status, answer = await api.call("ListComputationKeys", **ACCOUNTS, **beyond)
    assert (status, answer["error"]["reason"]) == (400, "KEYS_INVALID")
    status, answer = await api.call("ListComputationKeys", **ACCOUNTS, page_token="no token!")
    assert (status, answer["error"]["reason"]) == (400, "PAGE_TOKEN_INVALID")
    status, answer = await api.call("ListComputationKeys", **ACCOUNTS, keys={"start": "Yg==", "end": "YQ=="})
    assert (status, answer["error"]["reason"]) == (400, "KEYS_INVALID")
    status, answer = await api.call("GetKey", **ACCOUNTS, key=encoded("a" * 70_000))
    assert (status, answer["error"]["reason"]) == (400, "KEY_TOO_LONG")
    url = f"{server.console}api/v1/KeyService/GetKey?topology=shop&computation=accounts&key={encoded('ann')}"
    await until(lambda: get(http, url), patience(30), holds=lambda found: found[0] == 200)
