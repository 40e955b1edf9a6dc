"""Every view in the light and the dark scheme, by axe-core: WCAG 2.2 AA, and what it calls best practice.

Its file is in ``vendor/``. docs/decisions/0046-axe-core.md says why.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from millwheel.server.dev_server import DevServer
from tests.console.browser import Page
from tests.console.conftest import Inject, Start
from tests.console.looking import picture, says
from tests.console.shop import REFUSED

pytestmark = pytest.mark.long

AXE = Path(__file__).with_name("vendor") / "axe.min.js"
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
_CHECK = f"""
axe.run(document, {{ runOnly: {_RULES} }}).then((found) => JSON.stringify(found.violations.map((one) =>
  [one.id, one.nodes.length, one.nodes[0].html.slice(0, 200), one.nodes[0].failureSummary])))
"""


async def violations(page: Page) -> list[object]:
    """What axe-core finds on the page."""
    await page.run(f"{await asyncio.to_thread(AXE.read_text)};0")
    return list(json.loads(await page.run(_CHECK)))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_no_view_breaks_a_rule_of_accessibility(
    server: DevServer, start: Start, inject: Inject, page: Page, dark: bool
) -> None:
    for topology in ("shop", "bills", "large"):
        await start(topology)
    await inject("ann", REFUSED)
    await inject("ann", "bob", into="bills/orders")
    views = {
        "#/topologies": "no alert for eve",
        "#/topology/shop": "from injectors to accounts",
        "#/topology/shop/alerts": "Held by",
        "#/topology/large": "step-49",
        "#/time": "days",
        "#/time/shop/days": "Held by",
        "#/keys/shop/alerts": "1 key blocked",
        "#/key/shop/days": "ann",
        "#/key/shop/days/ann": "Interval",
        f"#/key/shop/alerts/{REFUSED}": "Blocked",
        "#/streams": "shop/orders",
        "#/streams/shop/alerts": "records kept",
        "#/injectors": "active",
        "#/letters/bills": "no price for ann",
        "#/letters/bills/0": "Traceback",
        "#/cluster": server.address,
        "#/events": "topology shop is submitted",
        "runbook.html#millwheelhookfailing": "Mended when",
    }
    for view, text in views.items():
        await page.open("about:blank")
        await page.open(server.console + view, dark=dark)
        await page.until(f"document.querySelector('h1') && {says(text)}", f"{view} does not show {text!r}")
        assert await violations(page) == [], view
        await picture(page, f"axe-{view[2:].replace('/', '-')}-{'dark' if dark else 'light'}")


async def test_an_open_plan_breaks_no_rule_of_accessibility(
    server: DevServer, start: Start, inject: Inject, page: Page
) -> None:
    await start("bills")
    await inject("ann", into="bills/orders")
    await page.open(f"{server.console}#/letters/bills/0")
    await page.until("document.querySelectorAll('.handling button').length === 2", "no buttons")
    await page.run("document.querySelectorAll('.handling button')[1].click()")
    await page.until("document.querySelector('.plan')", "no plan")
    assert await violations(page) == []


async def test_the_check_finds_what_is_wrong(server: DevServer, page: Page) -> None:
    await page.open(server.console)
    await page.until(says("Topologies"), "nothing is shown")
    await page.run("document.querySelector('main').append(document.createElement('button'))")
    assert [one for one in await violations(page) if "button-name" in str(one)] != []
