"""The Keys view with 1,000 intervals of one computation, and when the server is gone: nothing old is shown as live."""

from __future__ import annotations

from pathlib import Path

import pytest

from millwheel.server.dev_server import DevSettings, running
from tests.console import shop
from tests.console.browser import Page
from tests.console.looking import CONTRAST, picture, says
from tests.console.test_accessibility import violations
from tests.submitting import submit_copy

pytestmark = pytest.mark.long

CELLS = "document.querySelectorAll('.cell[role=option]').length"


async def test_a_thousand_intervals_are_a_strip_and_a_short_table(tmp_path: Path, page: Page) -> None:
    settings = DevSettings(db=tmp_path / "db", port=0, intervals=1_000, ui_port=0)
    async with running(settings) as server:
        await submit_copy(server.address, shop.__file__, "bills", tmp_path)
        await page.open(f"{server.console}#/keys/bills/bills", dark=True)
        await page.until(f"{CELLS} === 1000", "not all intervals are cells")
        assert await page.run("document.querySelectorAll('tbody tr').length") == 50
        await page.run("document.querySelector('.strip').focus()")
        await page.press("End")
        await page.until("document.querySelector('.inspector h2')?.innerText.includes('+inf')", "nothing is selected")
        await page.until("document.querySelector('.inspector dl').innerText.includes('commits')", "no figures")
        assert await page.run(CONTRAST) == []
        assert await violations(page) == []
        await picture(page, "keys-1000")
    await page.until("document.querySelector('.banner')?.innerText.includes('No answer since')", "no word of the end")
    await page.until(says("What is shown is older"), "the intervals look like those of now")
    assert await page.run("getComputedStyle(document.querySelector('main')).filter") == "grayscale(1)"
    assert await page.run(f"{CELLS}") == 1_000, "what was known stays"
    page.errors.clear()  # the browser notes each request that failed
