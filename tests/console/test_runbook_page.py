"""The runbook in the console: the page is that of the documentation, and each problem leads to its section."""

from __future__ import annotations

import re

from aiohttp import ClientSession

from millwheel.server.dev_server import DevServer
from tests.console.conftest import Inject, Start
from tests.console.shop import REFUSED
from tests.monitoring.queries import alerts
from tests.patience import patience, until
from tests.system.server import run_cli
from tools.runbook_page import PAGE, runbook_page


def test_the_page_of_the_runbook_is_fresh() -> None:
    assert PAGE.read_text() == runbook_page(), "run make runbook"


def test_the_page_has_all_sections_and_no_dead_link() -> None:
    page = runbook_page()
    anchors = set(re.findall(r'id="([^"]+)"', page))
    assert {name.lower() for name in alerts()} <= anchors
    links = set(re.findall(r'<a href="([^"]+)"', page))
    assert links - {f"#{anchor}" for anchor in anchors} == {"/"}
    assert "<script" not in page
    assert "<code>docs/computations.md#hot-keys</code>" in page, "a page that the console does not have is named"


async def test_health_names_the_section_in_the_console(server: DevServer, start: Start, inject: Inject) -> None:
    await start("shop")
    await inject("ann", REFUSED)

    async def shown() -> str:
        return (await run_cli(server.address, "cluster", "health")).out

    found = await until(shown, patience(30), holds=lambda text: "no alert for eve" in text)
    (link,) = re.findall(r"runbook: (\S+)", found)
    assert link == f"{server.console}runbook.html#millwheelhookfailing"
    async with ClientSession() as http, http.get(link) as response:
        assert response.status == 200
        assert 'id="millwheelhookfailing"' in await response.text()
