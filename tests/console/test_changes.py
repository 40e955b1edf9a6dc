"""Changes by the console's API: planned first, made once, and refused to other sites and by a read-only console."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import ClientSession

from millwheel.server.console.serving import serve_console
from millwheel.server.dev_server import DevServer
from tests.console.conftest import Start
from tests.console.test_api import intervals, post

PLAN = "api/v1/IntervalService/PlanIntervalChange"
SPLIT = "api/v1/IntervalService/SplitInterval"
AT = base64.b64encode(b"ab").decode()


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def planned(http: ClientSession, server: DevServer) -> Any:
    """The plan of a split of the last interval, which begins in the middle of the printable keys."""
    last = (await intervals(http, server))[-1]["interval"]
    change = {"interval": {"journal": last["journal"]}, "at": AT}
    status, plan = await post(http, server.console + PLAN, {"split": change})
    assert status == 200, plan
    return plan


async def test_a_plan_says_what_happens_and_changes_nothing(
    server: DevServer, http: ClientSession, start: Start
) -> None:
    await start("shop")
    before = await intervals(http, server)
    plan = await planned(http, server)
    assert [one["worker_id"] for one in plan["before"] + plan["after"]] == ["dev"] * 3
    assert plan["after"][1]["keys"]["start"] == plan["after"][0]["keys"]["end"] == AT
    assert "at key 'ab'" in plan["effects"][0]
    assert "Both halves stay on dev." in plan["effects"]
    assert [one["interval"] for one in await intervals(http, server)] == [one["interval"] for one in before]


async def test_a_confirmed_plan_is_carried_out_once(server: DevServer, http: ClientSession, start: Start) -> None:
    await start("shop")
    plan = await planned(http, server)
    request = {**plan["split"], "request_id": "a-test"}
    status, made = await post(http, server.console + SPLIT, request)
    assert (status, len(made["intervals"])) == (200, 2)
    assert await post(http, server.console + SPLIT, request) == (status, made), "a repetition changes nothing"
    assert len(await intervals(http, server)) == 3
    status, late = await post(http, server.console + SPLIT, {**request, "request_id": "another"})
    assert status >= 400, late


async def test_a_plan_is_refused_once_the_interval_has_changed(
    server: DevServer, http: ClientSession, start: Start
) -> None:
    await start("shop")
    plan = await planned(http, server)
    stale = {**plan["split"], "request_id": "a-test", "expected_sequencer": "7"}
    status, answer = await post(http, server.console + SPLIT, stale)
    assert (status, answer["error"]["code"], answer["error"]["reason"]) == (409, "ABORTED", "SEQUENCER_CHANGED")
    assert len(await intervals(http, server)) == 2


async def test_neighbours_are_merged_and_a_lone_move_is_refused(
    server: DevServer, http: ClientSession, start: Start
) -> None:
    await start("shop")
    first = {"interval": {"journal": (await intervals(http, server))[0]["interval"]["journal"]}}
    status, plan = await post(http, server.console + PLAN, {"merge": first})
    assert (status, len(plan["before"]), len(plan["after"])) == (200, 2, 1)
    assert "It stays on dev." in plan["effects"]
    status, refused = await post(http, server.console + PLAN, {"move": first})
    assert (status, refused["error"]["reason"]) == (400, "NO_OTHER_WORKER")
    merge = {**plan["merge"], "request_id": "a-test"}
    assert (await post(http, f"{server.console}api/v1/IntervalService/MergeIntervals", merge))[0] == 200
    assert len(await intervals(http, server)) == 1


async def test_a_read_only_console_changes_nothing(server: DevServer, http: ClientSession, start: Start) -> None:
    await start("shop")
    plan = await planned(http, server)
    async with AsyncExitStack() as stack:
        url = await serve_console(stack, server.address, "127.0.0.1", 0)
        async with http.get(f"{url}api/v1") as response:
            assert (await response.json())["read_only"] is True
        assert (await post(http, url + PLAN, {"split": plan["split"]}))[0] == 200
        status, answer = await post(http, url + SPLIT, {**plan["split"], "request_id": "a-test"})
        assert (status, answer["error"]["reason"]) == (403, "CONSOLE_READ_ONLY")
    assert len(await intervals(http, server)) == 2


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
async def test_another_site_changes_nothing(
    server: DevServer, http: ClientSession, start: Start, headers: dict[str, str], status: int
) -> None:
    await start("shop")
    plan = await planned(http, server)
    body = json.dumps({**plan["split"], "request_id": "a-test"}).encode()
    sent = {"Content-Type": "application/json", **headers}
    async with http.post(server.console + SPLIT, data=body, headers=sent) as response:
        assert response.status == status
    async with http.get(server.console + SPLIT, params={"request_id": "a-test"}) as response:
        assert response.status == 405, "a link changes nothing"
    assert len(await intervals(http, server)) == 2


async def test_a_body_that_is_nested_too_deeply_is_malformed(server: DevServer, http: ClientSession) -> None:
    headers = {"Content-Type": "application/json"}
    async with http.post(server.console + PLAN, data=b"[" * 100_000, headers=headers) as response:
        assert response.status == 400
        assert (await response.json())["error"]["reason"] == "REQUEST_MALFORMED"
