"""Sources and sinks in the console: how far each split and each shard is, at a glance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from millwheel.server.dev_server import DevServer
from tests.console import auctions
from tests.console.browser import Page
from tests.console.looking import CONTRAST, picture, says
from tests.console.test_accessibility import violations
from tests.console.test_api import overview, post
from tests.patience import patience, until
from tests.submitting import submit_copy


async def listed(http: ClientSession, server: DevServer, computation: str, **request: Any) -> dict[str, Any]:
    """The keys of a computation, by their base64. None before its owner serves it."""
    body = {"topology": "auctions", "computation": computation, **request}
    status, answer = await post(http, f"{server.console}api/v1/KeyService/ListComputationKeys", body)
    return {} if status == 503 else {one["listed"]["key"]: one["listed"] for one in answer["keys"]}


async def test_keys_are_listed_with_states_and_errors(server: DevServer, tmp_path: Path) -> None:
    await submit_copy(server.address, auctions.__file__, "auctions", tmp_path)
    async with ClientSession() as http:

        async def all_are_there() -> dict[str, Any]:
            return await listed(http, server, "bids-reader", states=True)

        found = await until(
            all_are_there, patience(30), holds=lambda keys: sum(bool(one["error"]) for one in keys.values()) == 1
        )
        found = await until(
            all_are_there, patience(30), holds=lambda keys: sum(bool(one["state_text"]) for one in keys.values()) == 2
        )
        morning, night = found["bW9ybmluZw=="], found["bmlnaHQ="]
        state = json.loads(morning["state_text"])
        assert (state["position"], state["behind"], morning["error"]) == (auctions.READ, 380, "")
        assert (night["state_text"], night["error"]) == ("", "ConnectionError: the night has no server")
        assert {one["state_text"] for one in (await listed(http, server, "bids-reader")).values()} == {""}
        rows = (await overview(http, server))["topologies"][0]["computations"]
        assert {one["name"]: one["connector"].removeprefix("CONNECTOR_PART_") for one in rows} == {
            "bids-splits": "FINDS_SPLITS",
            "bids-reader": "READS",
            "bids-table-batches": "MAKES_BATCHES",
            "bids-table": "WRITES",
        }


@pytest.mark.long
async def test_splits_and_shards_are_tables(server: DevServer, page: Page, tmp_path: Path) -> None:
    await submit_copy(server.address, auctions.__file__, "auctions", tmp_path)
    await page.open(f"{server.console}#/keys/auctions/bids-reader")
    await page.until(says("the night has no server"), "the error of a split is not shown")
    await page.until(says("380"), "how far a split is behind is not shown")
    first = "document.querySelector('section.connector tbody tr').innerText"
    assert "night" in await page.run(first), "what fails comes first"
    assert await page.run(CONTRAST) == []
    assert await violations(page) == []
    await picture(page, "splits")
    await page.open(f"{server.console}#/keys/auctions/bids-table")
    await page.until("document.querySelectorAll('section.connector tbody tr').length === 1", "no shard")
    await page.until(says("620"), "not all records are written")
    await picture(page, "shards")
    await page.open(f"{server.console}#/topology/auctions/bids-reader")
    await page.until("document.querySelectorAll('.node .part.ends').length === 2", "the ends are not marked")
    await page.until("document.querySelectorAll('aside section.connector tbody tr').length === 3", "no splits")
    assert await page.run(CONTRAST) == []
    assert await violations(page) == []
    await picture(page, "source-graph")
