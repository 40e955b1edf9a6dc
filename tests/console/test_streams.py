"""StreamService by the console's API: what a stream's log keeps, who reads it, and its records."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession

from millwheel.client.control import ControlClient
from millwheel.client.subscription import From, Subscription
from millwheel.server.dev_server import DevServer
from tests.console.conftest import Inject, Start
from tests.console.test_api import overview, post
from tests.patience import patience, until


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def read(http: ClientSession, server: DevServer, **request: Any) -> tuple[int, Any]:
    return await post(http, f"{server.console}api/v1/StreamService/ReadStream", request)


async def test_a_tail_shows_the_last_records_and_goes_on(
    server: DevServer, http: ClientSession, start: Start, inject: Inject
) -> None:
    await start("shop")
    await inject("ann", "bob", "ann")

    async def last() -> Any:
        return (await read(http, server, stream="shop/alerts"))[1]

    found = await until(last, patience(30), holds=lambda one: len(one.get("records", ())) == 3)
    assert [one["offset"] for one in found["records"]] == ["0", "1", "2"]
    assert sorted(json.loads(one["text"])["cents"] for one in found["records"]) == [5, 5, 10]
    assert found["next_offset"] == found["end_offset"] == "3"
    _, none = await read(http, server, stream="alerts", from_offset="3")
    assert (none["records"], none["next_offset"]) == ([], "3")
    _, some = await read(http, server, stream="shop/alerts", from_offset="1", limit=1)
    assert ([one["offset"] for one in some["records"]], some["next_offset"]) == (["1"], "2")
    await inject("dan", process="q")
    again = await until(lambda: read(http, server, stream="shop/alerts", from_offset="3"), patience(30), holds=_some)
    assert json.loads(again[1]["records"][0]["text"])["customer"] == "dan"


def _some(found: tuple[int, Any]) -> bool:
    return bool(found[1].get("records"))


async def test_a_look_makes_no_log(server: DevServer, http: ClientSession, start: Start, inject: Inject) -> None:
    await start("shop")
    await inject("ann")
    status, answer = await read(http, server, stream="shop/accounts")
    assert (status, answer["error"]["reason"]) == (400, "NO_LOG")
    streams = (await overview(http, server))["topologies"][0]["streams"]
    assert [one["name"] for one in streams if "log" in one] == ["shop/alerts", "shop/days"]
    async with ControlClient(server.address) as client:
        assert not [one for one in (await client.routing("shop/accounts")).consumers if one.log]
    status, answer = await read(http, server, stream="shop/nothing")
    assert (status, answer["error"]["code"]) == (404, "NOT_FOUND")

    async def beyond() -> Any:
        return await read(http, server, stream="shop/alerts", from_offset="99")

    status, answer = await until(beyond, patience(30), holds=lambda one: one[0] != 503)
    assert answer["error"]["reason"] == "OFFSET_BEYOND_END"


async def test_an_overview_has_what_a_log_keeps_and_its_cursors(
    server: DevServer, http: ClientSession, start: Start, inject: Inject
) -> None:
    await start("shop")
    await inject("ann", "bob")
    async with Subscription("shop/alerts", cursor="mailer", start=From.OLDEST, address=server.address) as mails:
        async for batch in mails:
            await mails.ack(batch.first_offset + 1)
            break
        await mails.flush()
        await inject("cyd", process="q")

        async def log() -> Any:
            streams = (await overview(http, server))["topologies"][0]["streams"]
            return next(one for one in streams if one["name"] == "shop/alerts")["log"]

        kept = (await until(log, patience(30), holds=lambda one: one.get("kept", {}).get("end_offset") == "3"))["kept"]
    assert kept["cursors"] == [{"cursor": "mailer", "acked_offset": "1"}]
    assert (kept["cursor_count"], int(kept["kept_bytes"]) > 0, kept["oldest_seconds"] >= 0) == (1, True, True)
