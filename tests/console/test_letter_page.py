"""The dead letters view in a real browser: list, one letter, replay and discard after their plans are confirmed."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from millwheel.server.console.serving import serve_console
from millwheel.server.dev_server import DevServer
from tests.console.browser import Page
from tests.console.conftest import Inject, Start
from tests.console.looking import CONTRAST, picture, says

pytestmark = pytest.mark.long

ROWS = "document.querySelectorAll('tbody tr').length"


def button(text: str) -> str:
    return f"[...document.querySelectorAll('main button')].find((one) => one.innerText.startsWith({text!r}))"


async def test_letters_are_replayed_after_their_plan_is_confirmed(
    server: DevServer, start: Start, inject: Inject, page: Page
) -> None:
    await start("bills")
    await inject("ann", "bob", "cyd", into="bills/orders")
    await page.open(f"{server.console}#/letters")
    await page.until(f"{ROWS} === 3", "not all letters are listed")
    await page.until("document.querySelector('.view[href=\"#/letters\"] .count').innerText === '3'", "not counted")
    await page.run("document.querySelectorAll('tbody input')[1].click()")
    await page.until(f"{button('Replay 1 selected')}?.disabled === false", "nothing is selected")
    await page.run(f"{button('Replay 1 selected')}.click()")
    await page.until("document.querySelector('.plan')?.innerText.includes('the code that runs now')", "no plan")
    assert await page.run(CONTRAST) == []
    await picture(page, "letters-plan")
    await page.run("document.querySelector('.plan button').focus()")
    await page.press("Escape")
    await page.until("!document.querySelector('.plan')", "Escape closes no plan")
    await page.run(f"{button('Replay all')}.focus()")
    await page.press("Enter")
    await page.press("Escape")
    await page.run("new Promise((done) => setTimeout(done, 500))")
    assert await page.run("document.querySelector('.plan') === null"), "an answer comes that was cancelled"
    await inject("ann", "bob", "cyd", into="bills/prices", process="q")
    await page.run(f"{button('Replay all')}.click()")
    await page.until(f"{button('Replay 3 letters')}", "no plan for all")
    await page.run(f"{button('Replay 3 letters')}.click()")
    await page.until(says("3 letters replayed."), "no word of the replay")
    await page.until(says("No dead letters are to be handled"), "replayed letters are still listed")
    await page.run("document.querySelector('select[name=state]').value = 'replayed'")
    await page.run("document.querySelector('select[name=state]').dispatchEvent(new Event('change', {bubbles: true}))")
    await page.until(f"{ROWS} === 3", "the replayed ones are not found")


async def test_a_page_says_what_a_replay_had_no_time_for(
    server: DevServer, start: Start, inject: Inject, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start("bills")
    await inject("ann", "bob", into="bills/orders")
    await inject("ann", "bob", into="bills/prices", process="q")
    await page.open(f"{server.console}#/letters/bills")
    await page.until(f"{ROWS} === 2", "not all letters are listed")
    for limit, said in (
        (0.0, "0 letters replayed. 2 not handled yet: what is left had no answer within 0 s."),
        (4.5, "2 letters replayed."),
    ):
        monkeypatch.setattr("millwheel.master.services.letters.REPLAY_SECONDS", limit)
        await page.run(f"{button('Replay all')}.click()")
        await page.until(button("Replay 2 letters"), "no plan")
        await page.run(f"{button('Replay 2 letters')}.click()")
        await page.until(says(said), f"no word of it: {said}")


async def test_a_letter_is_shown_with_everything_and_discarded(
    server: DevServer, start: Start, inject: Inject, page: Page
) -> None:
    await start("bills")
    await inject("ann", "bob", into="bills/orders")
    await page.open(f"{server.console}#/letters/bills")
    await page.until(f"{ROWS} === 2", "not all letters are listed")
    await page.run("document.querySelector('tbody a').click()")
    await page.until(says("which still runs"), "no word of the code")
    await page.until(says("raise LookupError"), "no traceback")
    assert '"customer"' in await page.run("document.querySelector('pre.state').innerText")
    assert await page.run(CONTRAST) == []
    await picture(page, "letter")
    await page.run(f"{button('Discard it')}.click()")
    await page.until("document.querySelector('.plan')?.innerText.includes('up for good')", "no plan")
    assert await page.run("document.querySelector('.figures dd').innerText") == "waiting", "a plan changes nothing"
    await page.run(f"{button('Discard 1 letter')}.click()")
    await page.until("document.querySelector('.figures dd').innerText === 'discarded'", "it is not discarded")
    await page.run("document.querySelector('h1 a').click()")
    await page.until(f"{ROWS} === 1", "it is still listed")


async def test_a_read_only_page_handles_no_letters(server: DevServer, start: Start, inject: Inject, page: Page) -> None:
    await start("bills")
    await inject("ann", into="bills/orders")
    async with AsyncExitStack() as stack:
        url = await serve_console(stack, server.address, "127.0.0.1", 0)
        await page.open(f"{url}#/letters/bills")
        await page.until(f"{ROWS} === 1", "no letter is listed")
        await page.until(says("This console is read-only"), "no word of it")
        assert await page.run("document.querySelector('.handling') === null")
