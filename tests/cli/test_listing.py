"""The lists of workers, computations and streams, against a server that runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millwheel.model.formats import NEWEST_FORMAT
from tests.patience import until
from tests.system.server import Server, run_cli
from tests.system.speaking import speak, submit

LISTS = [("worker", "list"), ("computation", "list"), ("stream", "list")]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(tmp_path / "db", tmp_path / "server.log") as made:
        yield made


async def listed(server: Server, *command: str) -> list[dict[str, Any]]:
    answer = await run_cli(server.address, *command, "-o", "json")
    assert answer.code == 0, answer.err
    rows: list[dict[str, Any]] = json.loads(answer.out)
    return rows


async def test_lists_show_what_runs(server: Server) -> None:
    await submit(server)
    await speak(server, "ice", "bad", "ice")

    async def counted() -> dict[str, Any]:
        return next(one for one in await listed(server, "computation", "list") if one["computation"] == "count")

    await until(counted, holds=lambda one: one["serving"] == one["intervals"] == 1)
    count = await counted()
    assert count["reads"] == ["words/spoken"]
    assert "words/seen" in count["writes"]
    streams = {one["stream"]: one for one in await listed(server, "stream", "list", "words")}
    assert streams["words/spoken"]["injected"]
    assert streams["words/spoken"]["read_by"] == ["words/count"]
    assert streams["words/seen"]["written_by"] == ["words/count"]
    assert streams["words/seen"]["log"]
    (worker,) = await listed(server, "worker", "list")
    assert worker["answers"]
    assert worker["intervals"] > 1
    tables = [(await run_cli(server.address, *command)).out for command in LISTS]
    assert "answers" in tables[0]
    assert "words/count" in tables[1]
    assert "injectors" in tables[2]
    none = await run_cli(server.address, "connectors", "show", "words")
    said = "topology words has no running connector; what injectors feed is shown by `millwheel injector list`\n"
    assert (none.code, none.out) == (0, said)
    assert f"\ncluster format {NEWEST_FORMAT}\n" in (await run_cli(server.address, "cluster", "health")).out
    health = await run_cli(server.address, "cluster", "health", "-o", "json")
    assert json.loads(health.out)["format"] == NEWEST_FORMAT
    await _see_it_cancelled(server)


async def _see_it_cancelled(server: Server) -> None:
    """Regression: a cancelled topology's streams were listed with readers, as if they took records."""
    assert {one["topology_state"] for one in await listed(server, "stream", "list")} == {"running"}
    await run_cli(server.address, "topology", "cancel", "words", "--yes")
    (count,) = [one for one in await listed(server, "computation", "list") if one["computation"] == "count"]
    assert (count["topology_state"], count["intervals"]) == ("cancelled", 0)
    streams = await listed(server, "stream", "list")
    assert {(one["topology_state"], *one["read_by"], *one["written_by"]) for one in streams} == {("cancelled",)}
    for command in LISTS[1:]:
        assert "topology is cancelled" in (await run_cli(server.address, *command)).out


async def test_lists_of_an_empty_server_say_so(server: Server) -> None:
    assert "no computations" in (await run_cli(server.address, "computation", "list")).out
    assert "no streams" in (await run_cli(server.address, "stream", "list")).out
    none = (await run_cli(server.address, "connectors", "show")).out
    assert "no running topology has a connector; what injectors feed" in none
    for command in LISTS[1:]:
        unknown = await run_cli(server.address, *command, "wrods")
        assert unknown.code == 3
        assert "wrods" in unknown.err
